"""What Airflow's Helm chart starts in the control image, started here: `bash -c "exec airflow ..."` with our bundle."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

pytest.importorskip("airflow")

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

ROOT = Path(__file__).parents[2]
VALUES = yaml.safe_load((ROOT / "docker" / "airflow-values.yaml").read_text())
COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
_LONGEST_START_SECONDS = 900


def chart(component: str) -> list[str]:
    """The arguments that the chart gives the image, whose entry point hands `bash` on as it is."""
    return ["bash", "-c", f"exec airflow {component}"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port: int = held.getsockname()[1]
    return port


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    project = tmp_path / "project"
    init = [sys.executable, "-m", "llm_pipeline", "init", str(project), "--model", "organisation/name"]
    python_path = f"{ROOT}:{ROOT / 'plugins'}"
    subprocess.run(init, check=True, env={**os.environ, "PYTHONPATH": python_path}, capture_output=True)
    port = free_port()
    clean = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
    return clean | {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": python_path,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__CORE__LOAD_EXAMPLES": VALUES["config"]["core"]["load_examples"],
        "AIRFLOW__LLM_PIPELINE__RELEASES": str(project / "releases"),
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(VALUES["dagProcessor"]["dagBundleConfigList"]),
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
    }


@pytest.fixture
def started(environment: dict[str, str], tmp_path: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    subprocess.run(chart("db migrate"), env=environment, check=True, capture_output=True)
    running = {}
    for component in COMPONENTS:
        with (tmp_path / f"{component}.log").open("wb") as log:
            running[component] = subprocess.Popen(
                chart(component), env=environment, stdout=log, stderr=log, start_new_session=True
            )
    yield running
    for process in running.values():
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answer(url: str) -> dict:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return json.load(response)
    except OSError:
        return {}


def test_every_component_of_the_chart_starts_and_our_dags_are_there(started, environment, tmp_path):
    base = environment["AIRFLOW__API__BASE_URL"]
    until = time.monotonic() + _LONGEST_START_SECONDS
    wanted = {"metadatabase", "scheduler", "triggerer", "dag_processor"}
    healthy: set[str] = set()
    while healthy < wanted:
        ended = {name: process.returncode for name, process in started.items() if process.poll() is not None}
        said = {name: (tmp_path / f"{name}.log").read_text()[-2000:] for name in ended}
        assert not ended, said
        assert time.monotonic() < until, healthy
        time.sleep(2)
        found = answer(f"{base}/api/v2/monitor/health")
        healthy = {name for name, state in found.items() if state and state.get("status") == "healthy"}
    listed = [sys.executable, "-m", "airflow", "dags", "list", "-o", "json"]
    while True:
        rows = json.loads(subprocess.check_output(listed, env=environment, text=True).splitlines()[-1])
        if {row["dag_id"] for row in rows} == {
            "release__first",
            "guard__local",
            "rollback__local",
            "retention__local",
            "verify__local",
        }:
            return
        assert time.monotonic() < until, rows
        time.sleep(2)
