"""Time `llm-pipeline plan` of every release config, a whole process each, and the rendering of what their targets need.

    make bench-plan
    python benchmarks/plan.py --runs 9

Plans are the median of several processes, from start to exit, on the committed configs and without a network. Rendered
is all that a GPU target's build and serving are given: LLM args with their check against the recorded schema, the
`trtllm-build` command, Triton's configurations. One line a goal; exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from goals import at_most

from llm_pipeline.config.loading import load_release
from llm_pipeline.config.target import EngineBuilderName, Target

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
    rendered, rendering = _rendering(paths)
    print(f"rendered: {', '.join(f'{count} x {name}' for name, count in rendered.items())}")
    met.append(at_most("render_all_examples_seconds", rendering, RENDER_SECONDS, "s"))
    return 0 if all(met) else 1


def _plan(path: Path, runs: int) -> Taken:
    command = [sys.executable, "-m", "llm_pipeline", "plan", str(path), "--json"]
    return sorted(_run(command) for _ in range(runs))[runs // 2]


def _run(command: Sequence[str]) -> Taken:
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - started
    return Taken(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _rendering(paths: list[Path]) -> tuple[Mapping[str, int], float]:
    """What was rendered how often, and the seconds it took, imports of the renderers included."""
    targets = [target for path in paths for target in load_release(path).release.targets]
    rendered: dict[str, int] = {}
    started = time.perf_counter()
    for target in targets:
        for render in _RENDERERS.get(target.engine, ()):
            for name, text in render(target):
                rendered[name] = rendered.get(name, 0) + bool(text)
    return rendered, time.perf_counter() - started


def _llm_args(target: Target) -> Iterator[tuple[str, str]]:
    from llm_pipeline.engines.llm_args.checking import check_llm_args
    from llm_pipeline.engines.llm_args.rendering import render_llm_args

    arguments = render_llm_args(target, model="checkpoint", checkpoint=None)
    check_llm_args(arguments.document, arguments.version).require(target.name)
    yield "llm_args.yaml", arguments.to_yaml()


def _build_command(target: Target) -> Iterator[tuple[str, str]]:
    from llm_pipeline.engines.trtllm_build.command import render_build_command

    places = {name: Path("/work") / name for name in ("checkpoint", "output", "new_timing_cache")}
    yield "trtllm-build", " ".join(render_build_command(target, **places))


def _inflight_batcher(target: Target) -> Iterator[tuple[str, str]]:
    from llm_pipeline.serving.triton_config.inflight_batcher import (
        bls_config,
        engine_model_config,
        ensemble_config,
        postprocessing_config,
        preprocessing_config,
    )
    from llm_pipeline.serving.triton_config.text import config_text

    directories = {"engine_directory": "/engine", "tokenizer_directory": "/tokenizer"}
    tokenizer = {"tokenizer_directory": "/tokenizer"}
    yield "config.pbtxt", config_text(engine_model_config(target, **directories))
    yield "config.pbtxt", config_text(preprocessing_config(target, **tokenizer))
    yield "config.pbtxt", config_text(postprocessing_config(target, **tokenizer))
    yield "config.pbtxt", config_text(ensemble_config(target))
    yield "config.pbtxt", config_text(bls_config(target))


_RENDERERS: Mapping[EngineBuilderName, tuple[Callable[[Target], Iterator[tuple[str, str]]], ...]] = {
    "tensorrt_llm_llmapi": (_llm_args,),
    "tensorrt_llm_engine": (_build_command, _inflight_batcher),
}
"""What each engine's targets are given; what a build or a server is given besides belongs here, too."""


if __name__ == "__main__":
    sys.exit(main())
