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
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.goals import at_most
from benchmarks.plan_hub import hub_process, publish, release_on
from llm_pipeline.adapters.tensorrt_llm.trtllm_build.command import render_build_command
from llm_pipeline.artifacts.engine_description import EngineDescription, EngineFacts
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.target import EngineBuilderName, Target
from llm_pipeline.engines.llm_args.checking import check_llm_args
from llm_pipeline.engines.llm_args.rendering import render_llm_args
from llm_pipeline.release.loading import load_release
from llm_pipeline.serving.kubernetes_manifests import (
    ServedRelease,
    ServingManifestOptions,
    pod_launch_plan,
    render_manifests,
    to_yaml,
)
from llm_pipeline.serving.model_repository import write_repository

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


_ENGINE = ArtifactRef(kind="engine", digest="0" * 64)
_CHECKPOINT = ArtifactRef(kind="checkpoint", digest="1" * 64)
_REPOSITORY = ArtifactRef(kind="model_repository", digest="2" * 64)
_OPTIONS = ServingManifestOptions(setup_image="registry.example.com/llm-pipeline-serving:0.1.0")


def render_target(target: Target, directory: Path) -> tuple[Path, ...]:
    """Render all of it into a new directory, and check it as builds and servers do; returns the files.

    The engine itself is a stand-in: the few files of it that a model repository is made from.

    Raises:
        PipelineError: Something is not legal in the target's version, or breaks a rule of the server.
    """
    engine = directory / "engine"
    engine.mkdir(parents=True)
    _RENDERERS[target.engine](target, engine)
    facts = EngineFacts(
        builder=target.engine,
        bytes=0,
        weight_format=target.weight_format,
        quantization=None,
        kv_cache="auto",
        context_length=target.limits.maximum_tokens_per_request,
        device=target.accelerator,
        versions={},
        seconds={},
    )
    EngineDescription(facts=facts, target=target, checkpoint=_CHECKPOINT).write(engine)
    write_repository(engine, [], {}, target, directory / "repository", engine_ref=_ENGINE)
    _manifests(target, directory)
    return tuple(sorted(path for path in directory.rglob("*") if path.is_file()))


def _llm_args(target: Target, engine: Path) -> None:
    arguments = render_llm_args(target, model="checkpoint", checkpoint=None)
    check_llm_args(arguments.document, arguments.version).require(target.name)
    (engine / "llm_args.yaml").write_text(arguments.to_yaml())


def _build_command(target: Target, engine: Path) -> None:
    command = render_build_command(target, Path("checkpoint"), Path("engine"), new_timing_cache=Path("timing.cache"))
    (engine.parent / "build_command.txt").write_text(shlex.join(command))
    (engine / "config.json").write_text(json.dumps({"pretrained_config": {"logits_dtype": "float32"}}))
    (engine / "tokenizer").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (engine / "tokenizer" / name).write_text("{}")


def _manifests(target: Target, directory: Path) -> None:
    release = ServedRelease(
        name="example",
        release_id="example",
        model_id="example/example",
        target=target,
        repository=_REPOSITORY,
        engine=_ENGINE,
        checkpoint=_CHECKPOINT,
    )
    (directory / "launch_plan.json").write_text(pod_launch_plan(release, _OPTIONS).model_dump_json(indent=1))
    (directory / "kubernetes").mkdir()
    for name, manifest in render_manifests(release, _OPTIONS).items():
        (directory / "kubernetes" / name).write_text(to_yaml(manifest))


_RENDERERS: Mapping[EngineBuilderName, Callable[[Target, Path], None]] = {
    "tensorrt_llm_llmapi": _llm_args,
    "tensorrt_llm_engine": _build_command,
}
"""What the build of each engine is given."""


if __name__ == "__main__":
    sys.exit(main())
