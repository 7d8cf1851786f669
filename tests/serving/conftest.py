import shutil
from pathlib import Path

import pytest

from llm_pipeline.serving.triton_server import start_server, stop_server

ROOT = Path(__file__).parents[2]
TRITON_HOME = ROOT / ".envs" / "triton"
MODEL_PYTHON = ROOT / ".envs" / "model" / "bin" / "python"
TOY = Path(__file__).parent / "toy_repository"

from free_ports import server_ports


class Slot:
    """One server slot of a test: a state directory and ports."""

    def __init__(self, state: Path, repository: Path) -> None:
        self.state, self.repository, self.ports = state, repository, server_ports()

    def start(self, digest: str = "d" * 64, **changes):
        arguments = {"triton_home": TRITON_HOME, "python": MODEL_PYTHON, "state": self.state, "digest": digest}
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
