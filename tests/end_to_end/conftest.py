"""The whole release path as a user runs it, in a place of its own: real training, Airflow, modelopt, Triton, Envoy."""

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import yaml

from llm_pipeline.base.errors import ExitCode
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.demo.releases import Console, Demo
from llm_pipeline.demo.services import CHAT, TINY, DemoLayout, DemoModel
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.serving.triton_runtime import segments
from llm_pipeline.store import open_store

_REPOSITORY = Path(__file__).parents[2]
_PORT_SHIFTS = {TINY: 3000, CHAT: 3500}
"""Away from the ports of the demo and of all other tests, which may run at the same time."""
SERVERS = ("staging", "comparison", "blue", "green")
_MODEL_PYTHON = _REPOSITORY / ".envs" / "model" / "bin" / "python"


class Site:
    """A demo in a temporary directory, on its own ports."""

    def __init__(self, root: Path, model: DemoModel) -> None:
        self.shift = _PORT_SHIFTS[model]
        if model is TINY:  # each request takes 15 ms of a core; a first step of 20 % has as many as 5 % of 25
            model = replace(model, requests_per_second=6.0)
        self.layout = DemoLayout(root / "pipeline", root / "configs", 18080 + self.shift, model)
        shutil.copytree(_REPOSITORY / "configs", self.layout.configs)
        self._remove_other_releases()
        self._write_deployment()
        if model is not CHAT:
            self._write_policy()
        self.deployment = load_yaml(self.layout.deployment, Deployment)
        self.store = open_store(self.deployment.store)
        self.output = ""

    def _remove_other_releases(self) -> None:
        """Airflow parses the DAGs of all releases again and again, and other tests do that for the examples."""
        for path in (self.layout.configs / "releases").glob("*.yaml"):
            is_chat = path.name.startswith(CHAT.release)
            if not path.name.startswith("demo") or is_chat is not self.layout.model.is_chat:
                path.unlink()

    def _write_policy(self) -> None:
        """Gates that a slow and busy host passes, too: what they decide is the matter of the tests of the gates.

        The load test's confirmation at the workload's rate stays; the tests of the stage search and compare, too.
        """
        path = self.layout.configs / "policies" / "demo.yaml"
        policy = yaml.safe_load(path.read_text())
        policy["load_test"] |= {
            "search": None,
            "regression": None,
            "attainment": 0.6,
            "service_level": {"first_token_milliseconds": 1000, "end_to_end_milliseconds": 2400},
            "maximum_client_lag_milliseconds": 500,
        }
        policy["staging"]["ready_timeout_seconds"] = 300
        policy["canary"] |= {"steps_percent": [20, 50, 100], "maximum_bake_seconds": 300}
        path.write_text(yaml.safe_dump(policy))

    def run(self, command: str) -> int:
        """One demo command; what it says is kept in `output`."""
        said = io.StringIO()
        with redirect_stdout(said):
            code: int = getattr(Demo(self.layout, Console()), command)()
        self.output = said.getvalue()
        return code

    def command(self, *arguments: str) -> list[str]:
        """A command line of `llm-pipeline`."""
        return [sys.executable, "-m", "llm_pipeline", *arguments]

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one command of `llm-pipeline` to its end."""
        command = self.command(*arguments)
        return subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)

    def release(self, name: str, *, like: str = "demo", **changes: object) -> Path:
        """A release config made from one of the demo's."""
        config = yaml.safe_load(self.layout.release(like).read_text()) | changes
        path = self.layout.release(name)
        path.write_text(yaml.safe_dump(config))
        return path

    def flow(self, name: str) -> ReleaseProgress:
        """The newest release of a config."""
        names = [n for n in self.store.list_documents("releases") if n.endswith("/release.json")]
        flows = [
            ReleaseProgress.open(self.deployment, n.split("/")[1])
            for n in names
            if n.split("/")[1].startswith(f"{name}-")
        ]
        return max((flow for flow in flows if flow.release.name == name), key=lambda flow: flow.resolved_at)

    def processes(self) -> list[str]:
        """Command lines of every process that works below this site."""
        found = []
        for process in psutil.process_iter(["pid", "cmdline", "status"]):
            if process.pid == os.getpid() or process.info["status"] == psutil.STATUS_ZOMBIE:
                continue
            line = " ".join(process.info["cmdline"] or [])
            if str(self.layout.root) in line:
                found.append(line)
        return found

    def shared_memory(self) -> list[Path]:
        """Segments of this site's servers that exist now."""
        root = Path(self.deployment.state_root)
        states = [root / place / server for place in self.deployment.places for server in SERVERS]
        return [segment for state in states for segment in segments(state)]

    def listening_ports(self) -> set[int]:
        """Those of this site's ports that something listens on."""
        ports = {port for place in self.deployment.places.values() for port in place.ports()}
        ports |= {self.layout.airflow_port, 18180 + self.shift}
        connections = psutil.net_connections("tcp")
        return ports & {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}

    def _write_deployment(self) -> None:
        text = self.layout.deployment.read_text()
        deployment = yaml.safe_load(text)
        root = self.layout.root
        deployment |= {
            "store": str(root / "store"),
            "work_root": str(root / "work"),
            "state_root": str(root / "state"),
            "hub": {"endpoint": f"http://127.0.0.1:{18180 + self.shift}"},
            "environments": {"control": sys.executable, "model": str(_MODEL_PYTHON)},
            "triton_home": str(_REPOSITORY / ".envs" / "triton"),
            "gpu_hour_prices": {"cpu": 0.05},
        }
        place = _shifted(deployment["places"][self.layout.model.place], self.shift)
        deployment["places"] = {self.layout.model.place: place, "cpu_engine_int4": _shifted(place, 100)}
        self.layout.deployment.write_text(yaml.safe_dump(deployment))


def _shifted(ports: dict, by: int) -> dict:
    return {key: _shifted(value, by) if isinstance(value, dict) else value + by for key, value in ports.items()}


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site whose demo was released: all that a test may take for granted, so that each can be run alone."""
    yield from released(tmp_path_factory.mktemp("site"), TINY)


@pytest.fixture
def chat_site(tmp_path: Path) -> Iterator[Site]:
    """One where the chat model was released, by the demo's own gates."""
    yield from released(tmp_path, CHAT)


def released(root: Path, model: DemoModel) -> Iterator[Site]:
    """A site where a model was released."""
    if not _MODEL_PYTHON.exists():
        pytest.skip("the model environment is missing: run `make environments`")
    site = Site(root, model)
    try:
        assert site.run("up") == ExitCode.GO, site.output
        yield site
    finally:
        site.run("down")
