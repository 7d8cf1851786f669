"""Airflow as its Helm chart starts it with our values: each container's own arguments, variables and configuration.

Real are Airflow with the chart's choices (KubernetesExecutor, FAB's users), the API server that its pods go to, and the
permissions that the chart gives. Doubles are the image (the control environment with Airflow's providers), the nodes
(containers are processes of this machine), and the database, which is SQLite.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("airflow")

from airflow_chart import NAMESPACE, ROOT, Machine, Render, rendered
from free_ports import free_port
from kubernetes_server import MERGE, KubernetesServer, kubernetes_server
from waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

COMPONENTS = ("airflow-api-server", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer")
DAGS = {"release__first", "guard__local", "rollback__local", "retention__local", "verify__local"}
BEFORE_BASELINE = ("claim", "resolve", "plan", "review_license", "eval_data", "download")
_LONGEST_SECONDS = 900


@dataclass
class Airflow:
    """A running Airflow of the chart.

    Attributes:
        url: Of its API server.
        machine: What stands for the nodes.
        server: The Kubernetes API server.
        processes: Its components.
        token: Of the user that the chart makes.
    """

    url: str
    machine: Machine
    server: KubernetesServer
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    token: str = ""

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Ask its API; nothing while it does not answer."""
        headers = {"content-type": "application/json", "authorization": f"Bearer {self.token}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                is_json = "json" in answer.headers.get("content-type", "")
                return json.loads(answer.read()) if is_json else answer.read().decode()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()[-2000:]}") from error
        except OSError:
            return None

    def health(self) -> set[str]:
        """The components that say that they are well."""
        for name, process in self.processes.items():
            log = self.machine.directory / f"{name}.log"
            assert process.poll() is None, f"{name} ended: {log.read_text()[-3000:]}"
        found = self.ask("GET", "/api/v2/monitor/health") or {}
        return {name for name, state in found.items() if state and state.get("status") == "healthy"}

    def run(self, dag_id: str) -> str:
        """A new run of a DAG, which stays as it is while the DAG is paused; its path."""
        runs = f"/api/v2/dags/{dag_id}/dagRuns"
        return f"{runs}/{self.ask('POST', runs, {'logical_date': None})['dag_run_id']}"

    def unpause(self, dag_id: str) -> None:
        self.ask("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": False})

    def pod(self, dag_id: str) -> dict[str, Any]:
        """The pod of a DAG's task, once the executor has asked for it."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=dag_id%3D{dag_id}"
        return until(lambda: self.health() and self.server.ask("GET", path)["items"], _LONGEST_SECONDS)[0]

    def play_kubelet(self, pod: dict[str, Any]) -> None:
        """Run a pod's container here, and say how it ended."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}/status"
        self.server.ask("PATCH", path, {"status": {"phase": "Running"}}, kind=MERGE)
        (container,) = pod["spec"]["containers"]
        with (self.machine.directory / "task.log").open("wb") as log:
            code = self.machine.start(pod, container, stdout=log, stderr=log).wait(_LONGEST_SECONDS)
        ended = json.dumps({"status": {"phase": "Failed" if code else "Succeeded"}})
        self.server.forward("PATCH", path, ended, kind=MERGE)  # not answered by 200 where the executor was faster


@pytest.fixture(scope="module")
def render() -> Render:
    return rendered()


@pytest.fixture(scope="module")
def server() -> Iterator[KubernetesServer]:
    with kubernetes_server() as running:
        running.namespace(NAMESPACE)
        yield running


@pytest.fixture(scope="module")
def machine(render: Render, server: KubernetesServer, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    directory = tmp_path_factory.mktemp("node")
    port = free_port()
    instead = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{directory}/airflow.db",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER": "False",
        "AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE": str(directory / "kubeconfig"),
        "HOME": str(directory),
    }
    texts = {"airflow-api-server:8080": f"127.0.0.1:{port}", "/srv/llm-pipeline": f"{directory}/srv"}
    here = Machine(render, directory, {"llm-pipeline": {"hf-token": "of the hub"}}, instead, texts)
    project = Path(here.here("/opt/airflow/project"))
    init = [sys.executable, "-m", "llm_pipeline", "init", str(project), "--model", "organisation/name"]
    python_path = f"{ROOT}:{ROOT / 'plugins'}"
    subprocess.run(init, check=True, env={**os.environ, "PYTHONPATH": python_path}, capture_output=True)
    deployment, work = project / "deployments" / "local.yaml", Path(here.here("/srv/llm-pipeline"))
    (work / "store").mkdir(parents=True)
    text = deployment.read_text().replace("../../.llm-pipeline", str(work))
    deployment.write_text(f"{text}workers: {{ quantization: {{ queue: gpu-h200, pool: gpu-h200 }} }}\n")
    server.kubeconfig(directory / "kubeconfig", _token_of_the_scheduler(render, server))
    return here


def _token_of_the_scheduler(render: Render, server: KubernetesServer) -> str:
    """The token of the chart's account, which may do what the chart's Role says."""
    roles, core = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}", f"/api/v1/namespaces/{NAMESPACE}"
    for kind, path in {"Role": f"{roles}/roles", "RoleBinding": f"{roles}/rolebindings"}.items():
        name = "airflow-pod-launcher-role" if kind == "Role" else "airflow-pod-launcher-rolebinding"
        server.ask("POST", path, render.one(kind, name))
    for name in ("airflow-scheduler", "airflow-worker"):
        server.ask("POST", f"{core}/serviceaccounts", render.one("ServiceAccount", name))
    request = server.ask("POST", f"{core}/serviceaccounts/airflow-scheduler/token", {"spec": {}})
    return str(request["status"]["token"])


@pytest.fixture(scope="module")
def airflow(render: Render, machine: Machine, server: KubernetesServer) -> Iterator[Airflow]:
    pods = render.of_airflow()
    running = Airflow(machine.instead["AIRFLOW__API__BASE_URL"], machine, server)

    def done(pod: dict[str, Any], container: dict[str, Any]) -> None:
        with (machine.directory / f"{container['name']}.log").open("w+b") as log:
            assert machine.start(pod, container, stdout=log, stderr=log).wait(_LONGEST_SECONDS) == 0, log.read()

    for job in ("airflow-run-airflow-migrations", "airflow-create-user"):
        done(pods[job], pods[job]["spec"]["containers"][0])
    for container in pods["airflow-scheduler"]["spec"]["initContainers"]:
        done(pods["airflow-scheduler"], container)
    try:
        for name in COMPONENTS:
            with (machine.directory / f"{name}.log").open("wb") as log:
                running.processes[name] = machine.start(
                    pods[name], pods[name]["spec"]["containers"][0], stdout=log, stderr=log, start_new_session=True
                )
        wanted = {"metadatabase", "scheduler", "triggerer", "dag_processor"}
        until(lambda: running.health() >= wanted, _LONGEST_SECONDS)
        login = {"username": "admin", "password": "admin"}  # as the chart's job for the first user has them
        running.token = running.ask("POST", "/auth/token", login)["access_token"]
        yield running
    finally:
        for process in running.processes.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_our_dags_pages_and_pools_are_there_for_the_charts_first_user(airflow: Airflow):
    def listed() -> set[str]:
        return {dag["dag_id"] for dag in airflow.ask("GET", "/api/v2/dags")["dags"]}

    until(lambda: airflow.health() and listed() == DAGS, _LONGEST_SECONDS)
    pools = {pool["name"]: pool for pool in airflow.ask("GET", "/api/v2/pools")["pools"]}
    assert (pools["gpu-h200"]["slots"], pools["gpu-h200"]["include_deferred"]) == (4, True)
    assert airflow.ask("GET", "/api/v2/importErrors")["total_entries"] == 0
    assert "No release yet" in airflow.ask("GET", "/llm-pipeline/releases")


def test_a_task_of_ours_runs_in_the_pod_that_the_executor_makes_for_it(airflow: Airflow, render: Render):
    run = airflow.run("retention__local")
    airflow.unpause("retention__local")
    pod = airflow.pod("retention__local")
    (container,) = pod["spec"]["containers"]
    template = render.pod_template()["spec"]
    assert container["image"] == template["containers"][0]["image"]
    assert container["args"][:3] == ["python", "-m", "airflow.sdk.execution_time.execute_workload"]
    assert pod["spec"]["terminationGracePeriodSeconds"] == 120
    assert pod["spec"]["securityContext"] == template["securityContext"]
    airflow.play_kubelet(pod)
    task_log = airflow.machine.directory / "task.log"
    until(lambda: airflow.ask("GET", run)["state"] in ("success", "failed"), _LONGEST_SECONDS)
    assert airflow.ask("GET", run)["state"] == "success", task_log.read_text()[-3000:]


def test_a_task_of_a_gpu_queue_gets_the_pod_of_its_queue(airflow: Airflow):
    run = airflow.run("release__first")
    for task in BEFORE_BASELINE:
        airflow.ask("PATCH", f"{run}/taskInstances/{task}", {"new_state": "success"})
    airflow.unpause("release__first")
    pod = airflow.pod("release__first")
    (container,) = pod["spec"]["containers"]
    assert pod["metadata"]["annotations"]["task_id"] == "baseline"
    assert container["image"] == "registry.example.com/llm-pipeline-worker:0.1.0"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert pod["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200"}
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in pod["spec"]["tolerations"]
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted >= {"/dev/shm", "/opt/airflow/project", "/srv/llm-pipeline", "/opt/airflow/airflow.cfg"}  # noqa: S108
    secrets = {one["name"]: one["valueFrom"]["secretKeyRef"]["name"] for one in container["env"] if "valueFrom" in one}
    assert secrets["HF_TOKEN"] == "llm-pipeline"
