"""A task whose worker died follows the pod that its first try started: nothing is computed twice."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from test_deferral import StateStore

from llm_pipeline.release.contract import StageRequest
from llm_pipeline.release.loading import load_release

sys.path.insert(0, str(Path(__file__).parents[1] / "doubles"))


class WorkerDied(BaseException):
    """What no `except` of a task catches."""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    from kubernetes_api import KubernetesApi

    api = KubernetesApi(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig()))
    yield api
    api.close()


@pytest.fixture
def config(project, cluster) -> Path:
    """The tests' release, whose light stages run in pods."""
    path = project.root / "configs/deployments/here.yaml"
    deployment = yaml.safe_load(path.read_text())
    deployment["environments"]["control"] = {
        "runner": "kubernetes",
        "namespace": "llm",
        "image": "registry.test/llm/control@sha256:0",
        "python": deployment["environments"]["control"],
        "claims": [{"claim": "shared", "path": str(project.root), "writable": True}],
    }
    path.write_text(yaml.safe_dump(deployment))
    project.script(report={"seconds": 0.4, "file": str(project.root / "started")})
    return project.config


@pytest.fixture
def operator(config):
    """A new operator object of the same task, as every try has one."""
    from llm_pipeline_airflow.operators import StageOperator

    class ReportOperator(StageOperator):
        def request(self, context):  # noqa: ARG002
            deployment = load_release(Path(self.config_path)).deployment
            place = {"store": deployment.store, "work_root": deployment.work_root}
            return StageRequest(release_id="tiny-01234567-00000000", stage="report", config={}, **place)

    return lambda: ReportOperator(task_id="report", stage="report", config_path=str(config))


@pytest.mark.parametrize("noted", [True, False], ids=["job noted", "killed before the job was noted"])
def test_a_second_try_follows_the_pod_of_the_first(operator, cluster, project, monkeypatch, noted):
    state, context = StateStore(), {}
    context["task_state_store"] = state
    first = operator()

    def die(*_):
        raise WorkerDied

    with monkeypatch.context() as dying:
        dying.setattr(first if noted else state, "poll_until_complete" if noted else "set", die, raising=False)
        with pytest.raises(WorkerDied):
            first.execute(context)
    (job,) = cluster.names()
    assert bool(state) is noted

    returned = operator().execute(context)

    assert returned["metrics"] == {"bytes": 1000}
    assert cluster.names() == [job]
    assert (project.root / "started").read_text() == "started\n"
    assert not state
