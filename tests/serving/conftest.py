import contextlib
import os
import shutil
import socket
import sys
from pathlib import Path

import pytest

from llm_pipeline.config.server_place import ServerPorts
from llm_pipeline.serving.triton_server import start_server, stop_server

ROOT = Path(__file__).parents[2]
TRITON_HOME = ROOT / ".envs" / "triton"
MODEL_PYTHON = ROOT / ".envs" / "model" / "bin" / "python"
FIRST_PORT = 18510 + 100 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
TOY = Path(__file__).parent / "toy_repository"

sys.path.append(str(Path(__file__).parent))


def free_ports() -> ServerPorts:
    found = []
    for port in range(FIRST_PORT, FIRST_PORT + 30):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return ServerPorts(http=found[0], grpc=found[1], metrics=found[2], openai=found[3])


class Slot:
    """One server slot of a test: a state directory and ports."""

    def __init__(self, state: Path, repository: Path) -> None:
        self.state, self.repository, self.ports = state, repository, free_ports()

    def start(self, *faults: str, digest: str = "d" * 64, **changes):
        arguments = {
            "triton_home": TRITON_HOME,
            "python": MODEL_PYTHON,
            "state": self.state,
            "digest": digest,
            "environment": {"TOY_FAULTS": " ".join(faults)} if faults else None,
        }
        repository = changes.pop("repository", self.repository)
        return start_server(repository, changes.pop("ports", self.ports), **{**arguments, **changes})

    def stop(self, **options) -> None:
        stop_server(self.state, **options)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TOY, tmp_path / "repository"))


@pytest.fixture
def slot(tmp_path: Path, repository: Path):
    if not TRITON_HOME.exists() or not MODEL_PYTHON.exists():
        pytest.skip("no tritonserver or no model interpreter here")
    slot = Slot(tmp_path / "slot", repository)
    yield slot
    slot.stop()
