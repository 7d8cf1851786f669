"""The `tensorrt_llm_llmapi` builder: the checkpoint is served as it is, by TensorRT-LLM's LLM API.

There is no engine to compile. The build renders the LLM args for the target's version, checks them and the checkpoint
before a GPU is touched, and then loads the model on the target's GPU, answers the golden prompts and measures. The
engine directory holds `llm_args.yaml` and `engine.json`, whose `checkpoint` names what is served.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from llm_pipeline.adapters.tensorrt_llm.checkpoint_preflight import CheckpointFacts, check_checkpoint
from llm_pipeline.adapters.tensorrt_llm.llmapi_repository import LLM_ARGUMENTS_FILE
from llm_pipeline.adapters.tensorrt_llm.llmapi_smoke import SmokeReport
from llm_pipeline.artifacts.engine_description import EngineDescription, EngineFacts
from llm_pipeline.artifacts.golden import GOLDEN_FILE, answered, write_golden
from llm_pipeline.artifacts.host_facts import HostFacts
from llm_pipeline.artifacts.host_match import driver_warning, require_target_host
from llm_pipeline.artifacts.model_rules import read_model_rules
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.json_document import load_record
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.offline import OFFLINE
from llm_pipeline.config.target import Target
from llm_pipeline.engines.builder import BuildInputs, golden_match
from llm_pipeline.engines.llm_args.checking import check_llm_args
from llm_pipeline.engines.llm_args.rendering import LlmArgs, render_llm_args
from llm_pipeline.engines.tool_process import run_tool

_INTERVAL_SECONDS = 1.0
_TIMEOUT_SECONDS = 30.0


class GpuMemoryWatch:
    """Looks at the visible GPUs once a second while it is entered.

        with GpuMemoryWatch() as watch:
            run_tool(...)
        watch.peak_bytes

    It counts what came on top of what was in use before, so that a build needs its GPUs for itself. A peak shorter
    than the interval can be missed; TensorRT-LLM allocates its pools once and keeps them.

    Attributes:
        peak_bytes: The most on any one GPU; 0 if `nvidia-smi` does not answer.
    """

    def __init__(self, interval_seconds: float = _INTERVAL_SECONDS) -> None:
        self.peak_bytes = 0
        self._interval = interval_seconds
        self._before: tuple[int, ...] = ()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._before = _used_bytes()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=_TIMEOUT_SECONDS)

    def _watch(self) -> None:
        while not self._ended.wait(self._interval):
            used = _used_bytes()
            if len(used) == len(self._before):
                taken = (now - before for now, before in zip(used, self._before, strict=True))
                self.peak_bytes = max(self.peak_bytes, *taken, 0)


def _used_bytes() -> tuple[int, ...]:
    """Memory in use by GPU; empty when the driver does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    command = [program, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        command.append(f"--id={visible}")
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True)
        return tuple(int(float(line) * 2**20) for line in answer.stdout.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()


log = get_logger(__name__)

MODEL = "checkpoint"
"""The checkpoint's place in `llm_args.yaml`, relative to the file in a model repository."""


@dataclass(frozen=True)
class _Smoke:
    report: SmokeReport
    peak_memory_bytes: int
    golden_match_fraction: float


class TensorRtLlmLlmApiBuilder:
    """The `tensorrt_llm_llmapi` engine builder."""

    def build(self, inputs: BuildInputs, destination: Path) -> EngineFacts:
        _require_inputs(inputs)
        checkpoint = check_checkpoint(inputs.checkpoint, inputs.target)
        arguments = _checked_arguments(inputs, checkpoint)
        host = require_target_host(inputs.target)
        _warn_of_driver(inputs.target, host)
        with tempfile.TemporaryDirectory(prefix="build-", dir=destination.parent) as scratch:
            smoke = _run_smoke(inputs, arguments, Path(scratch))
        destination.mkdir()
        (destination / LLM_ARGUMENTS_FILE).write_text(arguments.to_yaml(), encoding="utf-8")
        write_golden(destination, answered(inputs.golden, smoke.report.completions))
        facts = _facts(inputs.target, checkpoint, arguments, host, smoke)
        description = EngineDescription(
            facts=facts,
            target=inputs.target,
            rules=read_model_rules(inputs.checkpoint),
            host=host,
            checkpoint=inputs.checkpoint_ref,
        )
        description.write(destination)
        return facts


def _require_inputs(inputs: BuildInputs) -> None:
    where = f"targets/{inputs.target.name}.yaml"
    if inputs.target.weight_format != "native":
        raise ConfigError(
            f"weight_format {inputs.target.weight_format} is for CPU targets", where=where, hint="use native"
        )
    if not inputs.golden:
        raise ConfigError(
            "there are no golden prompts to check the loaded model by",
            where="accuracy.tasks",
            hint="give the release a generative task",
        )
    if inputs.checkpoint_ref is None:
        raise ConfigError("the LLM API serves the checkpoint from the store, and this one has no name there")


def _checked_arguments(inputs: BuildInputs, checkpoint: CheckpointFacts) -> LlmArgs:
    dtype = inputs.dtype if checkpoint.quantization.algorithm is None else None
    arguments = render_llm_args(inputs.target, model=MODEL, checkpoint=inputs.checkpoint, dtype=dtype)
    check = check_llm_args(arguments.document, arguments.version)
    check.require(f"targets/{inputs.target.name}.yaml")
    for warning in (*checkpoint.warnings, *map(str, check.warnings)):
        log.warning(warning)
    log.info("the LLM args fit the recorded schema", version=arguments.version, warnings=len(check.warnings))
    return arguments


def _warn_of_driver(target: Target, host: HostFacts) -> None:
    log.info("the host is the target's", gpu=host.gpus[0].name, gpus=len(host.gpus), driver=host.driver)
    if warning := driver_warning(target, host):
        log.warning(warning)


def _run_smoke(inputs: BuildInputs, arguments: LlmArgs, scratch: Path) -> _Smoke:
    """Load the model on this host's GPUs and compare what it answers.

    Raises:
        BuildFailed: It does not load.
        IntegrityError: It does not answer as the checkpoint that was judged.
    """
    rendered, report = scratch / LLM_ARGUMENTS_FILE, scratch / "smoke.json"
    rendered.write_text(arguments.to_yaml(), encoding="utf-8")
    write_golden(scratch, inputs.golden)
    command = [
        *(sys.executable, "-m", "llm_pipeline.adapters.tensorrt_llm.llmapi_smoke"),
        *("--args", str(rendered)),
        *("--checkpoint", str(inputs.checkpoint)),
        *("--golden", str(scratch / GOLDEN_FILE)),
        "--add-special-tokens" if inputs.target.serving.add_special_tokens else "--no-add-special-tokens",
        *("--expect-version", arguments.version),
        *("--output", str(report)),
    ]
    limit = inputs.target.build.time_limit_minutes * 60
    with GpuMemoryWatch() as watch:
        run_tool(command, time_limit_seconds=limit, name="llmapi_smoke", variables=OFFLINE)
    smoke = load_record(SmokeReport, report, "the smoke test left no report")
    return _Smoke(smoke, watch.peak_bytes, golden_match(inputs.golden, smoke.completions))


def _facts(
    target: Target, checkpoint: CheckpointFacts, arguments: LlmArgs, host: HostFacts, smoke: _Smoke
) -> EngineFacts:
    report = smoke.report
    return EngineFacts(
        builder="tensorrt_llm_llmapi",
        bytes=len(arguments.to_yaml().encode()),
        weight_format=target.weight_format,
        quantization=checkpoint.quantization.algorithm,
        kv_cache=arguments.kv_cache_type,
        context_length=checkpoint.context_length or target.limits.maximum_tokens_per_request,
        device=host.gpus[0].name,
        versions=report.versions,
        seconds=report.seconds,
        single_stream_tokens_per_second=report.single_stream_tokens_per_second,
        batched_tokens_per_second=report.batched_tokens_per_second,
        batched_sequences=report.batched_sequences,
        details={
            "load_seconds": report.seconds["load"],
            "peak_memory_bytes": smoke.peak_memory_bytes or None,
            "golden_match_fraction": smoke.golden_match_fraction,
            "golden_prompts": len(report.completions),
            "world_size": target.parallelism.world_size,
        },
    )
