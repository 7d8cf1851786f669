"""A real container engine for tests: the one that an environment variable names, or Podman of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_CONFIGURATION = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
"""
_LABEL = "app.kubernetes.io/managed-by=llm-pipeline"


@contextmanager
def real_engine() -> Iterator[tuple[Any, str]]:
    """A client of the engine and its address; skips the test where there is none."""
    import docker

    address = os.environ.get("LLM_PIPELINE_TEST_DOCKER_HOST", "")
    service, root = None, Path()
    if not address:
        if not (shutil.which("podman") and shutil.which("runc")):
            pytest.skip("no container engine here: set LLM_PIPELINE_TEST_DOCKER_HOST, or install podman and runc")
        root = Path(tempfile.mkdtemp(prefix="podman-"))  # Podman takes no longer paths than 50 characters
        address = f"unix://{root}/podman.sock"
        service = _podman(root, address)
    try:
        client = _until_it_answers(address)
        yield client, address
        for container in client.containers.list(all=True, filters={"label": _LABEL}):
            container.remove(force=True)
    except docker.errors.DockerException as error:
        pytest.skip(f"containers do not start here: {error}")
    finally:
        if service is not None:
            service.terminate()
            service.wait()
            shutil.rmtree(root, ignore_errors=True)


def _podman(root: Path, address: str) -> subprocess.Popen[bytes]:
    """Podman's service with all its state in a directory of its own; limits that need no privilege to set."""
    (root / "containers.conf").write_text(_CONFIGURATION)
    command = ["podman", "--storage-driver=vfs", "--root", f"{root}/root", "--runroot", f"{root}/run"]
    return subprocess.Popen(
        [*command, "--log-level=error", "system", "service", "--time", "0", address],
        env=os.environ | {"CONTAINERS_CONF": f"{root}/containers.conf"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _until_it_answers(address: str) -> Any:
    import docker

    for _ in range(300):
        try:
            return docker.DockerClient(address, timeout=120)
        except docker.errors.DockerException:
            time.sleep(0.1)
    pytest.skip(f"the container engine at {address} does not answer")
