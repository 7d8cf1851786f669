"""Our overhead in each stage of the demo: the time of its process beyond the tool that the stage exists for.

    make demo; python benchmarks/stage_overhead.py             # what the demo's processes took
    python benchmarks/stage_overhead.py --again                # on a busy machine: processor time instead
    python benchmarks/stage_overhead.py --jobs SITE/work/jobs  # of another deployment

The overhead of a process is its wall time, from its record to its result, less its tool's. A tool's time is that of the
libraries the stage exists for, their imports included (torch, modelopt, lm_eval, the hub's client), of the servers that
it waits for and of the traffic that it watches. Other work on the machine lengthens both. `--again` runs each stage
whose result can be reused once more and takes the processor time of that process: the interpreter, imports, key,
store and result, which is all that is ours but publication.

One line a goal; exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from goals import at_most

from llm_pipeline.release.registry import load_stage

REPOSITORY = Path(__file__).resolve().parents[1]
OVERHEAD_SECONDS = 0.5
_REPEATS = 3


@dataclass(frozen=True)
class StageTime:
    """One stage's process: its wall time and the time inside the tool it exists for, in seconds."""

    name: str
    wall: float
    tool: float

    @property
    def overhead(self) -> float:
        """Seconds that are ours: start of the interpreter, key, store, hashing, result."""
        return max(0.0, self.wall - self.tool)


def main() -> int:
    """Print a goal for each stage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=Path, default=REPOSITORY / ".pipeline" / "work" / "jobs")
    parser.add_argument("--again", action="store_true", help="run each stage again and take its processor time")
    options = parser.parse_args()
    if options.again:
        measured = {name: _again(job) for name, job in _jobs(options.jobs) if load_stage(name.split()[0]).reusable}
    else:
        measured = {time.name: time.overhead for time in stage_times(options.jobs)}
    if not measured:
        parser.error(f"no stage has ended below {options.jobs}; run `make demo`")
    kind = "processor time of a reused result" if options.again else "overhead"
    met = [at_most(f"{kind}, {name}", seconds, OVERHEAD_SECONDS, "s") for name, seconds in measured.items()]
    return 0 if all(met) else 1


def stage_times(jobs: Path) -> Iterator[StageTime]:
    """The processes that computed a result of the demo's releases, the fastest attempt of each."""
    times: dict[str, StageTime] = {}
    for name, job in _attempts(jobs):
        outcome = _result(job)
        if outcome["reused"]:
            continue
        wall = (job / "result.json").stat().st_mtime - (job / "process.json").stat().st_mtime
        time = StageTime(name, wall, outcome["timings"]["tool_seconds"])
        if name not in times or time.overhead < times[name].overhead:
            times[name] = time
    yield from times.values()


def _jobs(jobs: Path) -> Iterator[tuple[str, Path]]:
    yield from dict(_attempts(jobs)).items()


def _attempts(jobs: Path) -> Iterator[tuple[str, Path]]:
    """Attempts that ended with a result, with the names of their stages and what those work on."""
    for result in sorted(jobs.glob("demo*/*/*/result.json")):
        outcome = _result(result.parent)
        if outcome["outcome"] == "result":
            yield f"{outcome['stage']} {outcome['subject']}".strip(), result.parent


def _result(job: Path) -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads((job / "result.json").read_text())
    return found


def _again(job: Path) -> float:
    """Processor seconds of the process that finds the result in the store, the least of a few."""
    python = json.loads((job / "process.json").read_text())["command"][0]
    stage = _result(job)["stage"]
    with tempfile.TemporaryDirectory() as directory:
        command = [python, "-m", "llm_pipeline", "stage", "run", stage, "--request", str(job / "request.json")]
        return min(_processor_seconds([*command, "--result", f"{directory}/{n}.json"]) for n in range(_REPEATS))


def _processor_seconds(command: list[str]) -> float:
    # the first of the repeats compiles what is new, as installing the package does; without this each one would
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    silent = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
    process = os.posix_spawn(command[0], command, environment, file_actions=silent)
    _, status, usage = os.wait4(process, 0)
    if code := os.waitstatus_to_exitcode(status):
        sys.exit(f"{' '.join(command)} ended with {code}")
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main())
