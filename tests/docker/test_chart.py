"""What Airflow's Helm chart makes of our values, and whether a Kubernetes API server takes it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

pytest.importorskip("airflow")

from airflow_chart import NAMESPACE, VALUES, Render, rendered
from kubernetes_server import APPLY, KubernetesServer, kubernetes_server

pytestmark = pytest.mark.thorough

OURS = yaml.safe_load(VALUES.read_text())
IMAGE = f"{OURS['defaultAirflowRepository']}:{OURS['defaultAirflowTag']}"
PLURALS = {
    "ConfigMap": "configmaps", "Deployment": "deployments", "Job": "jobs", "Pod": "pods", "Role": "roles",
    "RoleBinding": "rolebindings", "Secret": "secrets", "Service": "services", "ServiceAccount": "serviceaccounts",
    "StatefulSet": "statefulsets",
}  # fmt: skip
COMPONENTS = {
    "airflow-api-server": "airflow api-server",
    "airflow-dag-processor": "airflow dag-processor",
    "airflow-scheduler": "airflow scheduler",
    "airflow-triggerer": "airflow triggerer",
    "airflow-run-airflow-migrations": "airflow db migrate",
    "airflow-create-user": 'airflow users create "$@"',
}


@pytest.fixture(scope="module")
def render() -> Render:
    return rendered()


@pytest.fixture(scope="module")
def server(render):
    with kubernetes_server() as running:
        running.namespace(NAMESPACE)
        worker = render.one("ServiceAccount", "airflow-worker")  # that of a task's pod must be there
        running.ask("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", worker)
        yield running


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]


def ports(spec: dict[str, Any]) -> list[dict[str, Any]]:
    pod = spec["template"]["spec"] if "template" in spec else spec
    return [port for one in (spec, *pod.get("containers", ())) for port in one.get("ports", ())]


def apply(server: KubernetesServer, document: dict[str, Any]) -> None:
    """Server-side apply, without effect: it refuses fields that the server does not know, and what is invalid."""
    document = copy.deepcopy(document)
    for port in ports(document["spec"]) if "spec" in document else ():
        port.setdefault("protocol", "TCP")  # without it, Kubernetes 1.20 takes no port to be the same as another
    api = document["apiVersion"]
    path = f"/{'apis' if '/' in api else 'api'}/{api}/namespaces/{NAMESPACE}/{PLURALS[document['kind']]}"
    options = "dryRun=All&fieldManager=helm&force=true"
    server.ask("PATCH", f"{path}/{document['metadata']['name']}?{options}", document, kind=APPLY)


def test_every_workload_of_airflow_runs_our_image_by_the_images_own_entry_point(render):
    pods = render.of_airflow()
    assert set(pods) == set(COMPONENTS)
    for name, pod in pods.items():
        first = pod["spec"]["containers"][0]
        assert first["args"][:2] == ["bash", "-c"]
        assert first["args"][2].replace("\\\n", "") == f"exec {COMPONENTS[name]}"
        assert {container["image"] for container in containers(pod)} == {IMAGE}
        assert not any("command" in container for container in containers(pod))


def test_every_component_sees_the_project_the_work_and_the_hubs_token(render):
    pods = {**render.of_airflow(), "task": render.pod_template(), "gpu-h200": render.pod_template("gpu-h200")}
    for name, pod in pods.items():
        first = pod["spec"]["containers"][0]
        mounted = {mount["mountPath"]: mount["name"] for mount in first["volumeMounts"]}
        claims = {
            volume["name"]: volume["persistentVolumeClaim"]["claimName"]
            for volume in pod["spec"]["volumes"]
            if "persistentVolumeClaim" in volume
        }
        assert claims[mounted["/opt/airflow/project"]] == "llm-pipeline-project", name
        assert claims[mounted["/srv/llm-pipeline"]] == "llm-pipeline-work", name
        (token,) = [one["valueFrom"]["secretKeyRef"] for one in first["env"] if one["name"] == "HF_TOKEN"]
        assert token == {"name": "llm-pipeline", "key": "hf-token"}, name


def test_logs_of_tasks_outlive_their_pods(render):
    for pod in (render.pod_template(), render.of_airflow()["airflow-api-server"]):
        claims = [volume.get("persistentVolumeClaim", {}).get("claimName") for volume in pod["spec"]["volumes"]]
        assert "llm-pipeline-logs" in claims


def test_no_pod_of_airflow_may_be_root_or_gain_privileges(render):
    for pod in [*render.of_airflow().values(), render.pod_template(), render.pod_template("gpu-h200")]:
        of_pod = pod["spec"]["securityContext"]
        assert of_pod["runAsNonRoot"]
        assert of_pod["runAsUser"] == 50000
        assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(pod):
            context = container["securityContext"]
            assert (context["allowPrivilegeEscalation"], context["capabilities"]) == (False, {"drop": ["ALL"]})


def test_a_digest_is_what_pods_run_by():
    digest = f"sha256:{'0' * 63}7"
    render = rendered("--set", f"defaultAirflowDigest={digest}")
    pods = [*render.of_airflow().values(), render.pod_template()]
    images = {container["image"] for pod in pods for container in containers(pod)}
    assert images == {f"{OURS['defaultAirflowRepository']}@{digest}"}


def test_with_celery_each_queue_has_workers_of_our_image(server):
    group = "workers.celery.sets[0]"
    options = ("executor=CeleryExecutor", f"{group}.name=h200", f"{group}.queue=gpu-h200")
    render = rendered(*(argument for option in options for argument in ("--set", option)))
    for name, command in {"airflow-worker": "", "airflow-worker-h200": " -q gpu-h200"}.items():
        first = render.of_airflow()[name]["spec"]["containers"][0]
        assert first["image"] == IMAGE
        assert first["args"][:2] == ["bash", "-c"]
        assert first["args"][2].replace("\\\n", "") == f"exec airflow celery worker{command}"
        apply(server, render.one("StatefulSet", name))


def test_an_api_server_takes_every_manifest_and_the_pods_of_tasks(render, server):
    for document in (*render.documents, render.pod_template(), render.pod_template("gpu-h200")):
        apply(server, document)
