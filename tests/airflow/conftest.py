"""Airflow in a directory of its own, and a small release whose stages are real processes that do no work."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fastapi.testclient import TestClient
    from in_process_runner import InProcess
    from people import People
    from real_airflow import RealAirflow

REPOSITORY = Path(__file__).resolve().parents[2]
STAGES = Path(__file__).parent / "stages_for_tests" / "run_stage.py"

from stage_interpreter import write_interpreter

if importlib.util.find_spec("airflow") is None:  # the model environment
    collect_ignore_glob = ["test_*.py"]

# Airflow reads its home when it is imported first, so it is chosen before any test imports it.
_HOME = tempfile.mkdtemp(prefix="airflow-tests-")
os.environ["AIRFLOW_HOME"] = _HOME
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"] = "False"
os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(REPOSITORY / "dags")
os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = f"sqlite:///{_HOME}/airflow.db"
os.environ["AIRFLOW__LOGGING__BASE_LOG_FOLDER"] = f"{_HOME}/logs"

RELEASE = """
description: A release whose stages do no work.
model: {{ id: demo/tiny }}
recipes: [small, large]
targets: [cpu-a, cpu-b]
policy: quick
deployment: here
evaluation: {{ tasks: [a_task], served_tasks: [a_task] }}
workload: {{ prompts: prompts.jsonl, rate_per_second: 20, duration_seconds: 30 }}
approval: {{ required: {approval} }}
"""
POLICY = """
load_test: { service_level: { first_token_milliseconds: 100, end_to_end_milliseconds: 200 } }
canary: { steps_percent: [5, 100] }
"""
PLACE = "{{ staging: {{ http: {0}1, grpc: {0}2, metrics: {0}3, openai: {1}3 }}, "
PLACE += "blue: {{ http: {0}4, grpc: {0}5, metrics: {0}6, openai: {1}4 }}, "
PLACE += (
    "green: {{ http: {0}7, grpc: {0}8, metrics: {0}9, openai: {1}5 }}, router: {{ port: {1}1, admin_port: {1}2 }} }}"
)
DEPLOYMENT = """
store: {root}/store
work_root: {root}/work
state_root: {root}/state
environments: {{ control: {python}, model: {python} }}
triton_home: {root}/triton
places: {{ cpu-a: {place_a}, cpu-b: {place_b} }}
notifications: {{ chat: {{ variable: CHAT_URL }} }}
"""
SIZES = """sizes: { model_type: llama, hidden_size: 128, intermediate_size: 384, num_hidden_layers: 2,
  num_attention_heads: 4, num_key_value_heads: 2, vocab_size: 512, max_position_embeddings: 4096 }"""
TARGET = "{ accelerator: cpu, accelerator_count: 0, engine: openvino_cpu }"


@dataclass(frozen=True)
class Project:
    """A configs directory in a temporary place.

    Attributes:
        root: Store, work and state are below it.
        config: The release config `tiny`.
    """

    root: Path
    config: Path

    def edit(self, name: str, before: str, after: str) -> None:
        """Replace a text in one of the configs, e.g. `releases/tiny`."""
        path = self.root / "configs" / f"{name}.yaml"
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after))

    def add(self, name: str, text: str) -> None:
        """Add lines to one of the configs."""
        with (self.root / "configs" / f"{name}.yaml").open("a") as config:
            config.write(text)

    def script(self, **stages: dict) -> None:
        """How stages end: `script(**{"accuracy/small": {"verdict": "NO_GO"}})`."""
        work = self.root / "work"
        work.mkdir(parents=True, exist_ok=True)
        (work / "script.json").write_text(json.dumps(stages))


def write_project(root: Path, *, approval: bool = False) -> Project:
    """Write a release config and all that it names."""
    files = {
        "releases/tiny.yaml": RELEASE.format(approval=str(approval).lower()),
        "policies/quick.yaml": POLICY,
        "deployments/here.yaml": DEPLOYMENT.format(
            root=root,
            python=write_interpreter(root / "python", STAGES, REPOSITORY, REPOSITORY / "plugins"),
            place_a=PLACE.format(1861, 1862),
            place_b=PLACE.format(1863, 1864),
        ),
        "quantization/small.yaml": "weights: int4_blockwise",
        "quantization/large.yaml": "weights: int8_weight_only",
        "targets/cpu-a.yaml": TARGET,
        "targets/cpu-b.yaml": TARGET,
        "prompts.jsonl": '{"prompt": "a"}',
    }
    for name, text in files.items():
        path = root / "configs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Project(root=root, config=root / "configs/releases/tiny.yaml")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A release that needs no approval."""
    return write_project(tmp_path)


@pytest.fixture
def without_hub(project) -> Project:
    """The sizes of the model are stated, and its hub refuses connections."""
    project.edit("releases/tiny", "demo/tiny", f"demo/tiny, {SIZES}")
    project.add("deployments/here", "hub: { endpoint: 'http://127.0.0.1:9' }\n")
    return project


@pytest.fixture(scope="module")
def told() -> Iterator[People]:
    """Whom the deployments tell, in this process."""
    from people import people

    with people() as found, pytest.MonkeyPatch.context() as environment:
        environment.setenv("CHAT_URL", found.url)
        yield found


@pytest.fixture(scope="module")
def in_process() -> Iterator[InProcess]:
    """Runs every stage of releases in this process, both for the run without Airflow and for Airflow's operators."""
    from in_process_runner import InProcess, scripted_stages

    from llm_pipeline import local_run
    from llm_pipeline.release import execute

    runner = InProcess()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_run, "Runners", runner)
        patch.setattr(local_run, "_BACK_OFF_SECONDS", 0.0)
        patch.setattr("llm_pipeline_airflow.operators.Runners", runner)
        patch.setattr("llm_pipeline_airflow.approvals.Runners", runner)
        patch.setattr(execute, "load_stage", scripted_stages().load_stage)
        yield runner


@pytest.fixture
def pages_for_everybody(monkeypatch) -> Iterator[TestClient]:
    """Asks our pages, as users who may read everything."""
    from fastapi.testclient import TestClient
    from llm_pipeline_airflow import web

    manager = SimpleNamespace(is_authorized_dag=lambda **_: True)
    monkeypatch.setattr(web, "get_auth_manager", lambda: manager)
    for route in web.app.routes:
        for dependency in route.dependant.dependencies if hasattr(route, "dependant") else ():
            monkeypatch.setitem(web.app.dependency_overrides, dependency.call, lambda: None)
    with TestClient(web.app) as client:
        yield client


@pytest.fixture(scope="session")
def make_project() -> Callable[..., Project]:
    """Makes releases of other kinds."""
    return write_project


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory) -> Path:
    """Airflow's database without a run, which is made once for all processes of the test run."""
    base = tmp_path_factory.getbasetemp()
    made = (base.parent if "PYTEST_XDIST_TESTRUNUID" in os.environ else base) / "airflow.db"
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            migrate = [sys.executable, "-m", "airflow", "db", "migrate"]
            subprocess.run(migrate, check=True, capture_output=True, timeout=900)
            Path(_HOME, "airflow.db").rename(made)
    return made


@pytest.fixture(scope="session")
def airflow_database(empty_database) -> str:
    """The home of this process's Airflow, with its database."""
    shutil.copyfile(empty_database, f"{_HOME}/airflow.db")
    return _HOME


@pytest.fixture(scope="session")
def real_airflow(tmp_path_factory, make_project, empty_database) -> Iterator[RealAirflow]:
    """One Airflow with all its services; `test_stopped_airflow.py` runs last and stops it."""
    from real_airflow import running

    with running(tmp_path_factory.mktemp("airflow"), make_project, empty_database) as airflow:
        yield airflow


def pytest_sessionfinish() -> None:
    """Leave nothing behind."""
    shutil.rmtree(_HOME, ignore_errors=True)
