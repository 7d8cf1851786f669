"""Time `llm-pipeline plan` of every release config, a whole process each.

    make bench-plan
    python benchmarks/plan.py --runs 9

The median of several processes, from start to exit, on the committed configs and without a network: by the sizes that
they state. One line a goal; exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from goals import at_most

REPOSITORY = Path(__file__).resolve().parents[1]
RELEASES = REPOSITORY / "configs" / "releases"
PLAN_SECONDS = 2.0


class Taken(NamedTuple):
    """What one process took, in seconds: of the clock, and of processors."""

    wall: float
    processor: float


def main() -> int:
    """Measure, print a line for each release, and the goals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="processes of each release, of which the median counts")
    options = parser.parse_args()
    paths = sorted(RELEASES.glob("*.yaml"))
    seconds = {path.stem: _plan(path, options.runs) for path in paths}
    for name, taken in seconds.items():
        print(f"plan {name}: {taken.wall:.2f} s, {taken.processor:.2f} s of processor time")
    slowest = max(seconds, key=lambda name: seconds[name])
    worst = f"plan_whole_process_seconds, worst of {len(paths)} ({slowest})"
    met = at_most(worst, seconds[slowest].wall, PLAN_SECONDS, "s")
    return 0 if met else 1


def _plan(path: Path, runs: int) -> Taken:
    command = [sys.executable, "-m", "llm_pipeline", "plan", str(path), "--json"]
    return sorted(_run(command) for _ in range(runs))[runs // 2]


def _run(command: Sequence[str]) -> Taken:
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    # An installed package has its bytecode; with this variable each process would compile it anew.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=True, stdout=subprocess.DEVNULL)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - started
    return Taken(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


if __name__ == "__main__":
    sys.exit(main())
