"""Time `llm-pipeline plan` of every release config, a whole process each, and the rendering of what their targets need.

    make bench-plan
    python benchmarks/plan.py --runs 9

Plans are the median of several processes, from start to exit, on the committed configs and without a network: by the
sizes that they state. One more reads a model of 70B on a hub of this machine, the headers of its 30 files by range; a
hub that is far away adds some three times its round trip. Rendered
is all that a GPU target's build and server are given: LLM args with their check against the recorded schema, the
`trtllm-build` command, model repositories, launch plans and Kubernetes manifests. One line a goal; exit code 1
when one is missed.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.example_files import render_target
from benchmarks.goals import at_most
from benchmarks.plan_hub import hub_process, publish, release_on
from llm_pipeline.release.loading import load_release

REPOSITORY = Path(__file__).resolve().parents[1]
RELEASES = REPOSITORY / "configs" / "releases"
PLAN_SECONDS = 2.0
RENDER_SECONDS = 1.0


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
    met = [at_most(worst, seconds[slowest].wall, PLAN_SECONDS, "s")]
    read = _plan_from_a_hub(options.runs)
    print(f"plan with headers of a 70B on a hub: {read.wall:.2f} s, {read.processor:.2f} s of processor time")
    met.append(at_most("plan_reading_70b_headers_seconds", read.wall, PLAN_SECONDS, "s"))
    targets, files, rendering = _rendering_seconds(paths)
    met.append(
        at_most(f"render_all_examples_seconds, {files} files of {targets} targets", rendering, RENDER_SECONDS, "s")
    )
    return 0 if all(met) else 1


def _plan_from_a_hub(runs: int) -> Taken:
    with tempfile.TemporaryDirectory(prefix="bench-plan-hub-") as temporary:
        root = Path(temporary)
        publish(root / "hub")
        with hub_process(root / "hub") as endpoint:
            return _plan(release_on(endpoint, REPOSITORY / "configs", root / "configs"), runs)


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


def _rendering_seconds(paths: Sequence[Path]) -> tuple[int, int, float]:
    """Targets and files that were rendered, and the seconds that took, without the imports of the renderers."""
    targets = [target for path in paths for target in load_release(path).release.targets]
    on_gpus = [target for target in targets if target.engine.startswith("tensorrt_llm")]  # vLLM reads no files of ours
    with tempfile.TemporaryDirectory(prefix="bench-plan-") as temporary:
        started = time.perf_counter()
        files = [render_target(target, Path(temporary) / target.name) for target in on_gpus]
        return len(on_gpus), sum(map(len, files)), time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
