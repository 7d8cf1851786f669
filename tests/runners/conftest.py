"""Places that stages run in, for the contract that all runners keep."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from llm_pipeline.adapters.kubernetes.adapter import KubernetesEnvironment
from llm_pipeline.adapters.local.adapter import ContainerEnvironment, Interpreter
from llm_pipeline.base import detached
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.environment import ClaimMount, Environment
from llm_pipeline.release.contract import StageRequest
from llm_pipeline.runners.runner import Job, Placement, Runners, StageRunner

REPOSITORY = Path(__file__).parents[2]
STAGE = Path(__file__).parent / "stages_for_tests" / "run_stage.py"
HERE = Placement(environment="control")
_SUBMIT = """
import sys
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.runners.runner import Placement, Runners
from llm_pipeline.release.contract import StageRequest
deployment, request = Deployment.model_validate_json(sys.argv[1]), StageRequest.model_validate_json(sys.argv[2])
print(Runners(deployment).submit(request, Placement(environment="control")).model_dump_json())
"""

from resolved_release import deployment_below
from stage_interpreter import write_interpreter
from waiting import until


@dataclass
class Place:
    """Where the stages of a test run.

    Attributes:
        deployment: Its environment `control` runs the tests' stage, `nowhere` has no interpreter or image.
        kill: Ends a job's stage from outside, as the kernel would.
    """

    deployment: Deployment
    kill: Callable[[Job], None]

    def runner(self) -> Runners:
        """A new runner, as another worker would have it."""
        return Runners(self.deployment)

    @staticmethod
    def ended(runner: StageRunner, job: Job, seconds: float = 120.0) -> None:
        """Wait until the stage has ended."""
        until(lambda: not runner.is_active(job), seconds, look_seconds=0.03)

    def submitting(self, request: StageRequest) -> list[str]:
        """The command of another process that submits a request."""
        return [sys.executable, "-c", _SUBMIT, self.deployment.model_dump_json(), request.model_dump_json()]

    def scripted(self, script: str, **environment: Any) -> Runners:
        """A runner whose stages are a shell script, in an environment with these settings."""
        program = Path(self.deployment.work_root).parent / "program"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        changed = self.deployment.environments["control"].model_copy(update={"python": str(program), **environment})
        self.deployment = self.deployment.model_copy(update={"environments": {"control": changed}})
        return self.runner()

    def request(self, subject: str = "", **script: Any) -> StageRequest:
        place = {"store": self.deployment.store, "work_root": self.deployment.work_root}
        return StageRequest(release_id="r1", stage="choose", subject=subject, config=script, **place)


@pytest.fixture
def python(tmp_path: Path) -> str:
    """A python whose stage is that of the tests."""
    return str(write_interpreter(tmp_path / "python", STAGE, REPOSITORY))


@pytest.fixture
def deployment(tmp_path: Path) -> Callable[..., Deployment]:
    """Deployments by their environments."""

    def make(control: Environment, nowhere: Environment) -> Deployment:
        environments = {"control": control, "model": control, "nowhere": nowhere}
        return deployment_below(tmp_path, name="test", environments=environments)

    return make


@pytest.fixture
def process_place(deployment, python) -> Place:
    def kill(job: Job) -> None:
        os.kill(detached.load(job.record).pid, signal.SIGKILL)

    return Place(deployment(Interpreter(python=python), Interpreter(python="/no/such/python")), kill)


@pytest.fixture
def container_place(deployment, python, engine, tmp_path) -> Place:
    there = ContainerEnvironment(**engine.environment(python, tmp_path))
    return Place(
        deployment(there, there.model_copy(update={"image": f"{engine.image}/no/such"})),
        lambda job: engine.ask("kill", job.name),
    )


@pytest.fixture
def real_kubernetes(tmp_path: Path, monkeypatch, kubernetes_server) -> Iterator[Any]:
    """A namespace of a real Kubernetes API server, with a double of a node."""
    from kubernetes_namespace import KubernetesNamespace

    namespace = KubernetesNamespace(kubernetes_server, tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(namespace.kubeconfig()))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    yield namespace
    namespace.close()


def _in_pods(deployment, python, tmp_path, cluster, *, namespace: str, node: Any, patience_minutes: float) -> Place:
    shared = ClaimMount(claim="shared", path=str(tmp_path), writable=True)
    image = "registry.test/llm/model:1"
    there = KubernetesEnvironment(
        runner="kubernetes", namespace=namespace, image=image, python=python, claims=(shared,)
    )
    node.missing_images.add("registry.test/no/such:1")
    changes = {"image": "registry.test/no/such:1", "start_timeout_minutes": patience_minutes}
    return Place(deployment(there, there.model_copy(update=changes)), lambda job: cluster.kill(job.name))


@pytest.fixture
def kubernetes_place(deployment, python, cluster, tmp_path) -> Place:
    return _in_pods(deployment, python, tmp_path, cluster, namespace="llm", node=cluster, patience_minutes=1e-4)


@pytest.fixture
def real_kubernetes_place(deployment, python, real_kubernetes, tmp_path) -> Place:
    there = {"namespace": real_kubernetes.namespace, "node": real_kubernetes.node}
    return _in_pods(deployment, python, tmp_path, real_kubernetes, **there, patience_minutes=0.1)
