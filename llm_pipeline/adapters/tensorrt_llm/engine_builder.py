"""Builds TensorRT engines with `trtllm-build` of TensorRT-LLM 1.0 to 1.2.x; later releases have no engine compiler.

Everything that can be known before is checked before: options, host, version, checkpoint. The engine is built beside
its destination and moved there when it is what was asked, so that a half-made one never looks like an engine.

The engine's directory is the one that TensorRT-LLM loads (`config.json`, `rankN.engine`), with `tokenizer/` and
`engine.json`, which records what TensorRT-LLM does not: GPU, driver and container.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

from llm_pipeline.adapters.tensorrt_llm.trtllm_build.checkpoint import BuildCheckpoint, read_build_checkpoint
from llm_pipeline.adapters.tensorrt_llm.trtllm_build.command import (
    PROGRAM,
    architecture_problems,
    build_settings,
    refuse_illegal_flags,
    render_build_command,
)
from llm_pipeline.adapters.tensorrt_llm.trtllm_build.output_check import (
    check_engine,
    engine_rank_bytes,
    predict_config,
    refuse_lost_features,
)
from llm_pipeline.adapters.tensorrt_llm.trtllm_build.progress import BuildProgress, TimingCache
from llm_pipeline.artifacts.checkpoint_files import copy_companions
from llm_pipeline.artifacts.engine_description import EngineDescription, EngineFacts
from llm_pipeline.artifacts.host_facts import HostFacts, read_host_facts
from llm_pipeline.artifacts.host_match import driver_warning, target_problems
from llm_pipeline.artifacts.model_rules import TOKENIZER, TOKENIZER_CONFIG, read_model_rules
from llm_pipeline.artifacts.repository_layout import TOKENIZER_DIRECTORY
from llm_pipeline.base.errors import IntegrityError, Unsupported
from llm_pipeline.base.logging import get_logger
from llm_pipeline.catalog.runtime_versions import engine_problem, release_numbers
from llm_pipeline.config.target import Parallelism, Target
from llm_pipeline.engines.builder import BuildInputs
from llm_pipeline.engines.failures import BuildFailed
from llm_pipeline.engines.tool_process import run_tool

log = get_logger(__name__)

_TENSORRT_DISTRIBUTIONS = ("tensorrt", "tensorrt_cu13", "tensorrt_cu12")
_UNKNOWN = "unknown"
_RECORDED_FOR = (1, 2)


class TensorRtLlmEngineBuilder:
    """The `tensorrt_llm_engine` engine builder."""

    def build(self, inputs: BuildInputs, destination: Path) -> EngineFacts:
        target = inputs.target
        _refuse_version(target)
        refuse_illegal_flags(target)
        host = _require_host(target)
        program = _find_program()
        _refuse_installed_version(target)
        checkpoint = _read_checkpoint(inputs, host)
        with tempfile.TemporaryDirectory(prefix="build-", dir=destination.parent) as scratch:
            build = _Build(inputs, host, checkpoint, program, Path(scratch))
            facts = build.run()
            build.engine.rename(destination)
        return facts


class _Build:
    """One build in its scratch directory."""

    def __init__(
        self, inputs: BuildInputs, host: HostFacts, checkpoint: BuildCheckpoint, program: str, scratch: Path
    ) -> None:
        self.engine = scratch / "engine"
        self._inputs, self._target, self._host, self._checkpoint = inputs, inputs.target, host, checkpoint
        self._program, self._new_cache = program, scratch / "timing.cache"
        self._versions = {"tensorrt_llm": str(inputs.target.runtime_version), "tensorrt": _installed_tensorrt()}
        self._progress = BuildProgress(len(checkpoint.rank_bytes))
        self._seconds: dict[str, float] = {}
        self._settings = build_settings(self._target)

    def run(self) -> EngineFacts:
        """Compile, check, and describe the engine in `self.engine`."""
        predicted = predict_config(self._target, self._checkpoint.config, self._host.gpus[0].sm)
        for change in predicted.changes:
            log.warning(f"{PROGRAM} will change an option by itself: {change}")
        cache = self._compile()
        started = time.monotonic()
        check_engine(self.engine, self._target, self._checkpoint, predicted)
        self._seconds["check"] = round(time.monotonic() - started, 3)
        if cache is not None:
            cache.keep(self._new_cache)
        self._add_tokenizer()
        return self._describe()

    def _compile(self) -> TimingCache | None:
        """Run the tool; once more without the timing cache if the build failed and the tool could not read it."""
        cache = self._timing_cache()
        known = cache.path if cache is not None and cache.is_there else None
        try:
            self._run_tool(known)
        except BuildFailed:
            if cache is None or known is None or not self._progress.cache_is_damaged:
                raise
            log.warning("the timing cache is damaged: removing it and building without it")
            cache.throw_away()
            self._run_tool(None)
        return cache

    def _run_tool(self, timing_cache: Path | None) -> None:
        self._progress = BuildProgress(len(self._checkpoint.rank_bytes))
        command = render_build_command(
            self._target,
            self._checkpoint.directory,
            self.engine,
            program=self._program,
            timing_cache=timing_cache,
            new_timing_cache=self._new_cache,
        )
        log.info("compiling", ranks=len(self._checkpoint.rank_bytes), workers=self._settings["workers"],
                 timing_cache=timing_cache is not None, command=" ".join(command))  # fmt: skip
        limit = self._target.build.time_limit_minutes * 60
        run = run_tool(command, time_limit_seconds=limit, on_line=self._progress)
        self._seconds["build"] = run.seconds

    def _timing_cache(self) -> TimingCache | None:
        if self._inputs.cache is None:
            return None
        return TimingCache.of(self._inputs.cache, gpu=self._host.gpus[0].name, **self._versions)

    def _add_tokenizer(self) -> None:
        tokenizer = self.engine / TOKENIZER_DIRECTORY
        tokenizer.mkdir()
        copy_companions(self._inputs.checkpoint, tokenizer)
        config = self._inputs.checkpoint / "config.json"
        if config.is_file():
            shutil.copyfile(config, tokenizer / "config.json")

    def _describe(self) -> EngineFacts:
        config, ranks = self._checkpoint.config, len(self._checkpoint.rank_bytes)
        facts = EngineFacts(
            builder="tensorrt_llm_engine",
            bytes=sum(path.stat().st_size for path in self.engine.rglob("*") if path.is_file()),
            weight_format=self._target.weight_format,
            quantization=config.algorithm,
            kv_cache=(config.kv_algorithm or config.dtype).lower(),
            context_length=self._target.limits.maximum_tokens_per_request,
            device=self._host.gpus[0].name,
            versions={name: version for name, version in self._versions.items() if version != _UNKNOWN},
            seconds=self._seconds,
            details={
                "ranks": ranks,
                "workers": self._settings["workers"],
                "build_seconds": self._progress.build_seconds,
                "peak_host_megabytes": self._progress.peak_host_megabytes,
                "engine_share_of_checkpoint": self._share_of_checkpoint(),
            },
        )
        description = EngineDescription(
            facts=facts,
            target=self._target,
            rules=read_model_rules(self._inputs.checkpoint),
            host=self._host,
        )
        description.write(self.engine)
        return facts

    def _share_of_checkpoint(self) -> float:
        sizes = self._checkpoint.rank_bytes
        return round(sum(engine_rank_bytes(self.engine, rank) for rank in range(len(sizes))) / sum(sizes), 3)


def _refuse_version(target: Target) -> None:
    if target.accelerator == "cpu":
        raise Unsupported("tensorrt_llm_engine builds for GPUs only", where=f"targets/{target.name}.yaml")
    version = target.runtime_version or ""
    if problem := engine_problem(version):
        raise Unsupported(problem.reason, where=f"targets/{target.name}.yaml", hint=f"use {problem.nearest}")
    if release_numbers(version) < _RECORDED_FOR:
        log.warning(f"the flags of {PROGRAM} were recorded for 1.2; TensorRT-LLM {version} may differ")


def _require_host(target: Target) -> HostFacts:
    """The facts of this host; a build needs as many of the target's GPUs as it has workers."""
    here = read_host_facts()
    needed = target.model_copy(update={"parallelism": Parallelism(tensor=int(build_settings(target)["workers"]))})
    problems = list(target_problems(needed, here))
    models = sorted({gpu.name for gpu in here.gpus})
    if len(models) > 1:
        problems.append(f"its GPUs are of several models ({', '.join(models)}): which one compiles is not certain")
    if problems:
        raise Unsupported(
            f"this host cannot build for {target.name}: {'; '.join(problems)}",
            where=f"targets/{target.name}.yaml",
            hint="build on a host with the target's GPUs: nothing was built",
        )
    if warning := driver_warning(target, here):
        log.warning(warning)
    return here


def _find_program() -> str:
    """The tool beside this interpreter, else on the PATH."""
    beside = Path(sys.executable).parent / PROGRAM
    program = str(beside) if beside.is_file() else shutil.which(PROGRAM)
    if program is None:
        raise Unsupported(
            f"there is no {PROGRAM} here",
            where="target.environment",
            hint="run the build in the target's container, or in an interpreter that has its TensorRT-LLM",
        )
    return program


def _refuse_installed_version(target: Target) -> None:
    """Refuse another TensorRT-LLM in this interpreter than the target's, without importing it."""
    installed = _installed("tensorrt_llm")
    if installed not in (None, target.runtime_version):
        raise Unsupported(
            f"this interpreter has TensorRT-LLM {installed}, the target has {target.runtime_version}",
            where=f"targets/{target.name}.yaml",
            hint="run the build in the target's container: an engine is read by the very version that built it",
        )


def _read_checkpoint(inputs: BuildInputs, host: HostFacts) -> BuildCheckpoint:
    target = inputs.target
    if inputs.tensorrt_llm_checkpoint is None:
        raise Unsupported(
            "engines are built from TensorRT-LLM checkpoints, which the recipe does not export",
            hint="set tensorrt_llm_checkpoint: true in the recipe, or use engine: tensorrt_llm_llmapi",
        )
    _require_tokenizer(inputs.checkpoint)
    checkpoint = read_build_checkpoint(inputs.tensorrt_llm_checkpoint, target)
    config = checkpoint.config
    if problems := architecture_problems(build_settings(target), config.architecture):
        raise Unsupported("; ".join(problems), where=f"targets/{target.name}.yaml")
    refuse_lost_features(target, config.algorithm, config.kv_algorithm, host.gpus[0].sm)
    return checkpoint


def _require_tokenizer(checkpoint: Path) -> None:
    """Refuse a checkpoint whose engine could not be served for want of a tokenizer."""
    if missing := [name for name in (TOKENIZER, TOKENIZER_CONFIG) if not (checkpoint / name).is_file()]:
        raise IntegrityError(f"the checkpoint has no {missing[0]}", where=str(checkpoint))


def _installed_tensorrt() -> str:
    return next(filter(None, map(_installed, _TENSORRT_DISTRIBUTIONS)), _UNKNOWN)


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
