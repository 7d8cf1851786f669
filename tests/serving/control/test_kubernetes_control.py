"""A staging server in pods: the cluster is a double, what its pods run is real, set-up and server alike."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes")

from llm_pipeline.adapters.kubernetes.adapter import SERVER, KubernetesServer
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.kubernetes_serving import ServingManifestOptions
from llm_pipeline.serving.control import Candidate, ServerControl, StagedServer, endpoint_of, open_control
from llm_pipeline.serving.triton_server import ServerFailed, SlotBusy

IMAGE = f"registry.test/serving@sha256:{'a' * 64}"
WORKLOAD = "llm-demo-staging-cpu"


@pytest.fixture
def cluster(tmp_path: Path, tritonserver: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from kubernetes_serving import ServingApi

    (tmp_path / "cluster").mkdir()
    double = ServingApi(tmp_path / "cluster")
    double.programs = {"/opt/tritonserver/bin/tritonserver": str(tritonserver), "python3": sys.executable}
    monkeypatch.setenv("KUBECONFIG", str(double.kubeconfig()))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    yield double
    double.close()


@pytest.fixture
def place(kubernetes_place) -> KubernetesServer:
    return kubernetes_place("staging", startup_minutes=1)


@pytest.fixture
def control(cluster, place, staging_slot) -> Iterator[ServerControl]:
    control = open_control(place, staging_slot)
    yield control
    cluster.forbidden = False
    control.stop()


@pytest.mark.slow
def test_a_candidate_is_served_by_a_pod_found_by_any_worker_and_gone_after_the_stop(
    control, cluster, place, staging_slot, make_repository, *, candidate_of
):
    assert control.find() is None
    candidate = candidate_of(make_repository())
    server = control.start(candidate, wait_seconds=30)
    assert server.endpoint == place.endpoint
    assert SERVER.probe(place) == "namespace staging answers and has 1 pods"
    assert cluster.names() == [WORKLOAD, f"{WORKLOAD}-0", f"{WORKLOAD}-endpoint"], (
        "monitors and scalers are for production"
    )
    assert cluster.object("deployments", WORKLOAD)["spec"]["replicas"] == 1
    worker = open_control(place, staging_slot)
    assert worker.find() == StagedServer(server.endpoint, candidate.digest)
    assert control.start(candidate, wait_seconds=30).digest == candidate.digest, "it runs already"
    with pytest.raises(SlotBusy, match=candidate.digest[:12]):
        control.start(candidate_of(make_repository("other", version=2)), wait_seconds=30)
    worker.stop(drain_seconds=2)
    assert cluster.names() == []
    worker.stop()


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
    monkeypatch.setattr(control, "_await_ready", lambda _: await_ready(time.monotonic() + 1))
    cluster.missing_images.add(IMAGE)
    with pytest.raises(ConfigError, match=f"ImagePullBackOff.*{IMAGE}"):
        control.start(candidate_of(make_repository()), wait_seconds=1)
    assert cluster.names() == []


def test_an_account_that_may_not_is_told_what_it_needs(control, cluster):
    cluster.forbidden = True
    with pytest.raises(ConfigError, match="create, get and delete Deployments"):
        control.find()


def test_workers_in_the_cluster_reach_the_service_by_its_name(place):
    inside = place.model_copy(update={"endpoint": None, "manifests": ServingManifestOptions(namespace="staging")})
    endpoint = endpoint_of(inside, release_name="demo", target_name="cpu")
    host = f"{WORKLOAD}-endpoint.staging.svc"
    assert endpoint.url == f"http://{host}:8003"
    assert endpoint.metrics_url == f"http://{host}:8002/metrics"


def test_who_creates_the_workload_has_it(control, cluster, make_repository, candidate_of, monkeypatch):
    """Another worker creates it between the look and the creation."""
    ours, theirs = candidate_of(make_repository()), candidate_of(make_repository("theirs", version=2))
    create = cluster._create

    def after_another(kind: str, manifest: dict[str, Any], namespace: str) -> dict[str, Any]:
        if kind == "deployments" and not cluster.names():
            annotations = {"llm-pipeline/repository-digest": theirs.digest}
            other = {**manifest, "metadata": {**manifest["metadata"], "annotations": annotations}}
            create(kind, other, namespace)
        return create(kind, manifest, namespace)

    monkeypatch.setattr(cluster, "_create", after_another)
    with pytest.raises(SlotBusy, match=theirs.digest[:12]):
        control.start(ours, wait_seconds=30)
    assert WORKLOAD in cluster.names(), "it is theirs"
