"""Time the demo as a newcomer meets it: first run with nothing there, second run, and the DAG file alone.

    make bench-demo              # in a fresh copy of this checkout, with a cold pip cache: about ten minutes
    python benchmarks/demo.py --here   # this checkout as it is: only the second run

One line a goal; exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from goals import at_most

REPOSITORY = Path(__file__).resolve().parents[1]
IMPORT_SECONDS = 0.3
WARM_PARSE_SECONDS = 0.05

_PARSE = """
import sys, time
import airflow.sdk, airflow.providers.standard.operators.empty, airflow.providers.standard.operators.hitl
started = time.perf_counter()
import runpy
runpy.run_path(sys.argv[1])
first = time.perf_counter()
warm = []
for _ in range(5):
    begun = time.perf_counter()
    runpy.run_path(sys.argv[1])
    warm.append(time.perf_counter() - begun)
print(first - started, sorted(warm)[2])
"""


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--here", action="store_true", help="do not copy the checkout; use its environments")
    here: bool = parser.parse_args().here
    if here:
        return _measure(REPOSITORY, first_seconds=None)
    with tempfile.TemporaryDirectory(prefix="bench-demo-") as temporary:
        copy = Path(temporary) / "checkout"
        subprocess.run(["git", "clone", "-q", str(REPOSITORY), str(copy)], check=True)
        print("first run: environments, training, everything; cold pip cache")
        first = _make_demo(copy, {"PIP_NO_CACHE_DIR": "1", "UV_NO_CACHE": "1"})
        try:
            return _measure(copy, first_seconds=first)
        finally:
            subprocess.run(["make", "down"], cwd=copy, check=False)


def _measure(checkout: Path, first_seconds: float | None) -> int:
    if first_seconds is not None:
        print(f"first make demo: {first_seconds:.1f} s")
    print(f"second make demo: {_make_demo(checkout, {}):.1f} s")
    cold, warm = _parse_seconds(checkout)
    goals = [
        at_most("dag_import_beyond_airflow_sdk", cold, IMPORT_SECONDS, "s"),
        at_most("dag_warm_parse", warm, WARM_PARSE_SECONDS, "s"),
    ]
    return 0 if all(goals) else 1


def _make_demo(checkout: Path, extra: Mapping[str, str]) -> float:
    started = time.monotonic()
    subprocess.run(["make", "demo"], cwd=checkout, check=True, env=os.environ | dict(extra))
    return time.monotonic() - started


def _parse_seconds(checkout: Path) -> tuple[float, float]:
    python = checkout / ".envs" / "control" / "bin" / "python"
    home = Path(tempfile.mkdtemp(prefix="bench-airflow-"))
    environment = os.environ | {"AIRFLOW_HOME": str(home), "PYTHONPATH": str(checkout / "plugins")}
    try:
        output = subprocess.run(
            [str(python), "-c", _PARSE, str(checkout / "dags" / "releases.py")],
            check=True,
            capture_output=True,
            text=True,
            env=environment,
        ).stdout
    finally:
        shutil.rmtree(home)
    cold, warm = output.split()[-2:]
    return float(cold), float(warm)


if __name__ == "__main__":
    sys.exit(main())
