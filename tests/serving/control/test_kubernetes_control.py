"""A staging server in pods: what they run is real, set-up and server alike; the cluster is a double.

In `make test-thorough` it is a real API server with its controllers, too, whose node is a double. That server is older
than the pause before the end of a pod (`preStop.sleep`, Kubernetes 1.30), so a proxy leaves it out.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes")

from documented_roles import documented_rules, without

from llm_pipeline.adapters.kubernetes.adapter import SERVER, KubernetesServer
from llm_pipeline.adapters.kubernetes.server import NEEDS
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.kubernetes_serving import ServingManifestOptions
from llm_pipeline.serving.control import Candidate, ServerControl, StagedServer, endpoint_of, open_control
from llm_pipeline.serving.triton_server import ServerFailed, SlotBusy

IMAGE = f"registry.test/serving@sha256:{'a' * 64}"
WORKLOAD = "llm-demo-staging-cpu"
_LISTS = ("/apis/apps/v1/%s/deployments", "/apis/apps/v1/%s/replicasets", "/api/v1/%s/services", "/api/v1/%s/pods")


def real_cluster(server: Any, directory: Path) -> Any:
    from kubernetes_namespace import KubernetesNamespace

    class OldCluster(KubernetesNamespace):
        def perform(self, method: str, target: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
            if body and body.get("kind") == "Deployment":
                for container in body["spec"]["template"]["spec"]["containers"]:
                    assert set(container.pop("lifecycle")["preStop"]) == {"sleep"}
            return super().perform(method, target, body)

        def names(self) -> list[str]:
            """What is there of ours, by the kinds that a release may leave behind."""
            found = [self.server.ask("GET", path % f"namespaces/{self.namespace}")["items"] for path in _LISTS]
            return sorted(one["metadata"]["name"] for items in found for one in items)

    return OldCluster(server, directory, role="staging")


@pytest.fixture(params=["double", pytest.param("real", marks=pytest.mark.thorough)])
def cluster(request, tmp_path: Path, tritonserver: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from kubernetes_api import KubernetesApi

    (directory := tmp_path / "cluster").mkdir()
    if request.param == "real":
        found: Any = real_cluster(request.getfixturevalue("kubernetes_server"), directory)
    else:
        found = KubernetesApi(directory)
        found.namespace, found.node = "staging", found
    found.node.programs = {"/opt/tritonserver/bin/tritonserver": str(tritonserver), "python3": sys.executable}
    monkeypatch.setenv("KUBECONFIG", str(found.kubeconfig()))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    yield found
    found.close()


@pytest.fixture
def place(cluster, kubernetes_place) -> KubernetesServer:
    return kubernetes_place(cluster.namespace, startup_minutes=2)


@pytest.fixture
def control(cluster, place, staging_slot) -> Iterator[ServerControl]:
    control = open_control(place, staging_slot)
    allowed = getattr(cluster, "account", None)
    yield control
    cluster.account = allowed
    control.stop()


@pytest.mark.slow
def test_a_candidate_is_served_by_a_pod_found_by_any_worker_and_gone_after_the_stop(
    control, cluster, place, staging_slot, make_repository, *, candidate_of
):
    assert control.find() is None
    candidate = candidate_of(make_repository())
    server = control.start(candidate, wait_seconds=30)
    assert server.endpoint == place.endpoint
    assert SERVER.probe(place) == f"namespace {cluster.namespace} answers and has 1 pods"
    ours = [name for name in cluster.names() if name in (WORKLOAD, f"{WORKLOAD}-endpoint")]
    others = [name for name in cluster.names() if not name.startswith(f"{WORKLOAD}-") and name not in ours]
    assert (len(ours), others) == (2, []), "monitors and scalers are for production"
    worker = open_control(place, staging_slot)
    assert worker.find() == StagedServer(server.endpoint, candidate.digest)
    assert control.start(candidate, wait_seconds=30).digest == candidate.digest, "it runs already"
    with pytest.raises(SlotBusy, match=candidate.digest[:12]):
        control.start(candidate_of(make_repository("other")), wait_seconds=30)
    worker.stop(drain_seconds=2)
    assert cluster.names() == []
    worker.stop()
    assert set(cluster.calls) == {
        "GET deployments", "POST deployments", "POST services", "GET pods", "DELETE services", "DELETE deployments",
    }  # fmt: skip


@pytest.mark.slow
def test_a_model_that_does_not_load_shows_why_and_leaves_nothing(control, cluster, make_repository, candidate_of):
    candidate = candidate_of(make_repository(broken="built for another GPU"))
    with pytest.raises(ServerFailed, match=r"(?s)container server ended .*built for another GPU") as failed:
        control.start(candidate, wait_seconds=30)
    assert WORKLOAD in failed.value.where
    assert cluster.names() == []


@pytest.mark.slow
def test_a_repository_that_pods_do_not_find_fails_in_the_set_up(control, cluster, make_repository, candidate_of, place):
    candidate = candidate_of(make_repository())
    missing = candidate.release.model_copy(update={"repository": ArtifactRef(kind="model_repository", digest="9" * 64)})
    with pytest.raises(ServerFailed, match="container setup ended"):
        control.start(Candidate(candidate.repository, "9" * 64, release=missing), wait_seconds=30)
    assert cluster.names() == []


def test_an_image_that_cannot_be_pulled_is_named_in_the_end_and_leaves_nothing(
    control, cluster, make_repository, candidate_of, monkeypatch
):
    await_ready = control._await_ready
    monkeypatch.setattr(control, "_await_ready", lambda _: await_ready(time.monotonic() + 5))
    cluster.node.missing_images.add(IMAGE)
    with pytest.raises(ConfigError, match=f"ImagePullBackOff.*{IMAGE}"):
        control.start(candidate_of(make_repository()), wait_seconds=1)
    assert cluster.names() == []


def test_workers_in_the_cluster_reach_the_service_by_its_name(kubernetes_place):
    place = kubernetes_place("staging")
    inside = place.model_copy(update={"endpoint": None, "manifests": ServingManifestOptions(namespace="staging")})
    endpoint = endpoint_of(inside, release_name="demo", target_name="cpu")
    host = f"{WORKLOAD}-endpoint.staging.svc"
    assert endpoint.url == f"http://{host}:8003"
    assert endpoint.metrics_url == f"http://{host}:8002/metrics"


@pytest.mark.parametrize("cluster", ["double"], indirect=True)
def test_who_creates_the_workload_has_it(control, cluster, make_repository, candidate_of, monkeypatch):
    """Another worker creates it between the look and the creation."""
    ours, theirs = candidate_of(make_repository()), candidate_of(make_repository("theirs"))
    create = cluster._create

    def after_another(kind: str, manifest: dict[str, Any]) -> dict[str, Any]:
        if kind == "deployments" and not cluster.names():
            annotations = {"llm-pipeline/repository-digest": theirs.digest}
            other = {**manifest, "metadata": {**manifest["metadata"], "annotations": annotations}}
            create(kind, other)
        return create(kind, manifest)

    monkeypatch.setattr(cluster, "_create", after_another)
    with pytest.raises(SlotBusy, match=theirs.digest[:12]):
        control.start(ours, wait_seconds=30)
    assert WORKLOAD in cluster.names(), "it is theirs"


_VERBS = [
    (rule["resources"][0], verb)
    for rule in documented_rules("staging")
    for verb in rule["verbs"]
    if rule["resources"] != ["leaderworkersets"]
]


@pytest.mark.parametrize("cluster", [pytest.param("real", marks=pytest.mark.thorough)], indirect=True)
@pytest.mark.parametrize(("resource", "verb"), _VERBS, ids=[f"{verb} {resource}" for resource, verb in _VERBS])
def test_each_permission_that_is_missing_is_one_error_that_names_it(
    control, cluster, make_repository, *, candidate_of, resource, verb
):
    rules = without(documented_rules("staging"), resource, verb)
    cluster.account = cluster.server.account(cluster.namespace, rules)
    candidate = candidate_of(make_repository(broken="so that its log is looked at"))
    with pytest.raises(ConfigError, match=rf'cannot {verb} resource "{resource}" .* in the namespace') as caught:
        control.start(candidate, wait_seconds=30)
    assert caught.value.hint == f"this account needs: {NEEDS}"
