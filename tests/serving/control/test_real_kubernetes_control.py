"""A staging server in pods of a real API server and its controllers; the node is a double, what pods run is real.

The server is older than the pause before the end of a pod (`preStop.sleep`, Kubernetes 1.30), so a proxy leaves it out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes")

sys.path.insert(0, str(Path(__file__).parents[2]))

from documented_roles import documented_rules, without

from llm_pipeline.adapters.kubernetes.adapter import SERVER, KubernetesServer
from llm_pipeline.adapters.kubernetes.server import NEEDS
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.serving.control import ServerControl, StagedServer, open_control
from llm_pipeline.serving.triton_server import ServerFailed, SlotBusy

pytestmark = pytest.mark.thorough

IMAGE = f"registry.test/serving@sha256:{'a' * 64}"
WORKLOAD = "llm-demo-staging-cpu"


@pytest.fixture
def cluster(kubernetes_server, tmp_path: Path, tritonserver: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from kubernetes_namespace import KubernetesNamespace

    class OldCluster(KubernetesNamespace):
        def respond(self, method: str, target: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
            if body and body.get("kind") == "Deployment":
                for container in body["spec"]["template"]["spec"]["containers"]:
                    assert set(container.pop("lifecycle")["preStop"]) == {"sleep"}
            return super().respond(method, target, body)

    (tmp_path / "cluster").mkdir()
    found = OldCluster(kubernetes_server, tmp_path / "cluster", role="staging")
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
    allowed = cluster.account
    yield control
    cluster.account = allowed
    control.stop()


def names(cluster) -> list[str]:
    """What is there of ours, by the kinds that a release may leave behind."""
    lists = ("/apis/apps/v1/%s/deployments", "/apis/apps/v1/%s/replicasets", "/api/v1/%s/services", "/api/v1/%s/pods")
    found = [cluster.server.ask("GET", path % f"namespaces/{cluster.namespace}")["items"] for path in lists]
    return sorted(one["metadata"]["name"] for items in found for one in items)


def test_a_candidate_is_served_by_a_pod_found_by_any_worker_and_gone_after_the_stop(
    control, cluster, place, staging_slot, make_repository, *, candidate_of
):
    assert control.find() is None
    candidate = candidate_of(make_repository())
    server = control.start(candidate, wait_seconds=30)
    assert SERVER.probe(place) == f"namespace {cluster.namespace} answers and has 1 pods"
    there = names(cluster)
    assert len(there) == 4, "a Deployment, its ReplicaSet, a pod and a Service"
    assert {WORKLOAD, f"{WORKLOAD}-endpoint"} <= set(there)
    worker = open_control(place, staging_slot)
    assert worker.find() == StagedServer(server.endpoint, candidate.digest)
    assert control.start(candidate, wait_seconds=30).digest == candidate.digest, "it runs already"
    with pytest.raises(SlotBusy, match=candidate.digest[:12]):
        control.start(candidate_of(make_repository("other", version=2)), wait_seconds=30)
    worker.stop(drain_seconds=2)
    assert names(cluster) == []
    worker.stop()
    assert set(cluster.calls) == {
        "GET deployments", "POST deployments", "POST services", "GET pods", "DELETE services", "DELETE deployments",
    }  # fmt: skip


def test_a_model_that_does_not_load_shows_why_and_leaves_nothing(control, cluster, make_repository, candidate_of):
    candidate = candidate_of(make_repository(broken="built for another GPU"))
    with pytest.raises(ServerFailed, match=r"(?s)container server ended .*built for another GPU"):
        control.start(candidate, wait_seconds=30)
    assert names(cluster) == []


def test_an_image_that_cannot_be_pulled_is_named_in_the_end_and_leaves_nothing(
    cluster, make_repository, candidate_of, kubernetes_place, staging_slot
):
    control = open_control(kubernetes_place(cluster.namespace, startup_minutes=1), staging_slot)
    cluster.node.missing_images.add(IMAGE)
    with pytest.raises(ConfigError, match=f"ImagePullBackOff.*{IMAGE}"):
        control.start(candidate_of(make_repository()), wait_seconds=5)
    assert names(cluster) == []


_VERBS = [
    (rule["resources"][0], verb)
    for rule in documented_rules("staging")
    for verb in rule["verbs"]
    if rule["resources"] != ["leaderworkersets"]
]


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
