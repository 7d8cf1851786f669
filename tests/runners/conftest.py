"""Places that stages run in, for the contract that all runners keep, and the doubles behind two of them."""

from __future__ import annotations

import io
import os
import signal
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from llm_pipeline.adapters.docker.adapter import DockerEnvironment, Mount
from llm_pipeline.adapters.kubernetes.adapter import KubernetesEnvironment
from llm_pipeline.adapters.local.adapter import Interpreter
from llm_pipeline.base import detached
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.environment import ClaimMount, Environment
from llm_pipeline.release.contract import StageRequest
from llm_pipeline.runners.runner import Job, Placement, Runners, StageRunner

REPOSITORY = Path(__file__).parents[2]
STAGE = Path(__file__).parent / "stages_for_tests" / "run_stage.py"
HERE = Placement(environment="control")

from container_engine import real_engine
from docker_engine import IMAGE
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
def docker_place(deployment, python, engine) -> Place:
    there = DockerEnvironment(runner="docker", image=IMAGE, python=python, network="none")
    return Place(
        deployment(there, there.model_copy(update={"image": "registry.test/no/such:1"})),
        lambda job: engine.container(job.name).signal(signal.SIGKILL),
    )


@pytest.fixture(scope="session")
def real_container_engine() -> Iterator[tuple[str, str]]:
    """Address of a real engine, Docker's or Podman's, and an image in it that is filled by mounts of this machine."""
    import docker

    with real_engine() as (client, address):
        client.api.import_image_from_data(_skeleton(), repository="llm-test/skeleton", tag="latest")
        mounts = [docker.types.Mount("/usr", "/usr", type="bind", read_only=True)]
        client.containers.run(
            "llm-test/skeleton:latest", ["/bin/true"], mounts=mounts, network_mode="none", remove=True
        )
        yield address, "llm-test/skeleton:latest"


def _skeleton() -> bytes:
    """An image of nothing but directories to mount on, and the links that programs are started through."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name in ("usr", "etc", "proc", "sys", "dev", "tmp"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for name in ("bin", "lib", "lib64", "sbin"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(entry)
    return data.getvalue()


@pytest.fixture
def real_docker_place(deployment, python, real_container_engine, monkeypatch) -> Place:
    import docker

    address, image = real_container_engine
    monkeypatch.setenv("DOCKER_HOST", address)
    paths = {"/usr", str(REPOSITORY), sys.prefix, sys.base_prefix, str(Path(python).parent)}
    outer = [path for path in sorted(paths) if not any(path.startswith(f"{other}/") for other in paths)]
    mounts = tuple(Mount(source=path) for path in outer)
    there = DockerEnvironment(runner="docker", image=image, python=python, network="none", mounts=mounts)
    return Place(
        deployment(there, there.model_copy(update={"image": "NO/no/such:1"})),
        lambda job: docker.DockerClient(address).containers.get(job.name).kill(),
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
    there = KubernetesEnvironment(
        runner="kubernetes", namespace=namespace, image=IMAGE, python=python, claims=(shared,)
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
