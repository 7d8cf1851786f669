"""`trtllm-build` for a target, without TensorRT-LLM: its command line, what it reads, and what it must have written.

Its flags are handed on as a target states them, but for those that would make another engine than the one that is asked
for; the tool itself refuses unknown ones within seconds, before it compiles. Tensor and pipeline parallelism are no
flags: they come from the checkpoint. Without MPI one process builds every rank, `workers` at a time,
each worker on a GPU of its own, so a build needs one host whatever the number of nodes that serve the engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.base.json_document import load_record
from llm_pipeline.catalog.runtime_versions import Problem
from llm_pipeline.catalog.tables import find_gpu
from llm_pipeline.config.model import ParameterValue
from llm_pipeline.config.target import TOKENS_PER_BLOCK, Target

PROGRAM = "trtllm-build"
_DEFAULTS: dict[str, ParameterValue] = {
    "max_beam_width": 1,
    "tokens_per_block": TOKENS_PER_BLOCK,
    "use_paged_context_fmha": True,
    "use_fp8_context_fmha": True,
    "gpt_attention_plugin": "auto",
    "gemm_plugin": "auto",
    "workers": 1,
}
"""What `build.flags` may change."""

_BY_LIMITS = "is set by the target's limits"
_BY_STAGE = "is set by the build stage"
_IN_FLIGHT = "cannot be set: in-flight batching needs the paged KV cache and packed input"
_CODE = "cannot be set: it would run code that nobody reviewed"
_NOT_OURS_TO_CHANGE = {
    "checkpoint_dir": "is set by the recipe's tensorrt_llm_checkpoint",
    **dict.fromkeys(("output_dir", "input_timing_cache", "output_timing_cache"), _BY_STAGE),
    **dict.fromkeys(("max_batch_size", "max_seq_len", "max_decoder_seq_len"), _BY_LIMITS),
    **dict.fromkeys(("max_input_len", "max_num_tokens"), _BY_LIMITS),
    **dict.fromkeys(("kv_cache_type", "paged_kv_cache", "remove_input_padding"), _IN_FLIGHT),
    **dict.fromkeys(("model_cls_file", "model_cls_name"), _CODE),
    "model_config": "cannot be set: an engine is built from a checkpoint with its weights",
    "build_config": "cannot be set: name the flags one by one",
    "dry_run": "cannot be set: it makes no engine",
    "strip_plan": "cannot be set: an engine without weights cannot be served as it is",
}
_WITHOUT_VALUE = frozenset({
    "weight_sparsity", "weight_streaming", "fast_build", "enable_debug_output", "monitor_memory",
    "gather_context_logits", "gather_generation_logits", "gather_all_token_logits",
})  # fmt: skip
"""Flags that stand alone; the tool's other switches take `enable` and `disable`."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_FP8_ATTENTION, _FIRST_FP8_SM = ("FP8", "W4A8_AWQ", "NVFP4"), 89
_NOT_ON_BLACKWELL, _BLACKWELL = ("W8A16", "W4A16", "W8A8_SQ", "FP8_PER_CHANNEL_PER_TOKEN"), range(100, 120)


def build_settings(target: Target) -> dict[str, ParameterValue]:
    """The flags that decide what the engine is, by name without dashes; paths are not among them."""
    limits, sequence = target.limits, target.limits.maximum_tokens_per_request
    return {
        "max_batch_size": limits.maximum_sequences,
        "max_seq_len": sequence,
        "max_input_len": sequence - 1,
        "max_num_tokens": min(limits.maximum_batched_tokens, limits.maximum_sequences * sequence),
        "kv_cache_type": "paged",
        "remove_input_padding": True,
        **_DEFAULTS,
        **target.build.flags,
    }


def render_build_command(
    target: Target,
    checkpoint: Path,
    output: Path,
    *,
    new_timing_cache: Path,
    timing_cache: Path | None = None,
    program: str = PROGRAM,
) -> list[str]:
    """The whole command.

    Args:
        target: What to build for.
        checkpoint: TensorRT-LLM checkpoint; it decides on the number of ranks.
        output: Directory that the tool makes.
        new_timing_cache: Where the tool writes its timing cache.
        timing_cache: A timing cache of an earlier build on the same GPU and version.
        program: The tool.

    Raises:
        ConfigError: Flags that are not legal; all of them are named.
    """
    refuse_illegal_options(target)
    command = [program, "--checkpoint_dir", str(checkpoint), "--output_dir", str(output)]
    for key, value in build_settings(target).items():
        if key not in _WITHOUT_VALUE:
            text = ("enable" if value else "disable") if isinstance(value, bool) else str(value)
            command += [f"--{key}", *(word.strip() for word in text.split(","))]
        elif value:
            command.append(f"--{key}")
    if timing_cache is not None:
        command += ["--input_timing_cache", str(timing_cache)]
    return [*command, "--output_timing_cache", str(new_timing_cache)]


def refuse_illegal_options(target: Target) -> None:
    """Refuse options that make no legal command, before a GPU is asked for.

    Raises:
        ConfigError: There are such; all of them are named.
    """
    if problems := command_problems(target):
        raise ConfigError(
            f"{len(problems)} of the options of {PROGRAM} cannot be used: {'; '.join(problems)}",
            where=f"targets/{target.name}.yaml",
            hint="correct them under build, limits and runtime: nothing was built",
        )


def command_problems(target: Target) -> tuple[str, ...]:
    """What is wrong with a target's options for the engine builder, one line each; the tool knows its flags itself."""
    return tuple(_problems(target))


def _problems(target: Target) -> Iterator[str]:
    for key, value in target.build.flags.items():
        if not _NAME.fullmatch(key):
            yield f"{key!r} is no name of a flag: it is written without dashes"
        elif why := _NOT_OURS_TO_CHANGE.get(key):
            yield f"--{key} {why}"
        elif not str(value) or str(value).startswith("-"):
            yield f"--{key} takes a word or a number, not {value!r}"
        elif key in _WITHOUT_VALUE and not isinstance(value, bool):
            yield f"--{key} takes true or false, not {value!r}"
    settings, ranks = build_settings(target), target.parallelism.world_size
    tokens, block, workers = (settings[name] for name in ("max_num_tokens", "tokens_per_block", "workers"))
    if isinstance(block, int) and int(tokens) < block:
        yield f"a step of {tokens} tokens (limits.maximum_batched_tokens) is smaller than a KV block of {block}"
    if not target.runtime.chunked_context and int(tokens) < target.limits.maximum_tokens_per_request - 1:
        yield (
            f"prompts of more than {tokens} tokens (limits.maximum_batched_tokens) would be refused at run time: "
            "raise it, or set runtime.chunked_context"
        )
    if isinstance(workers, int) and workers > ranks:
        yield f"workers is {workers}, the engine has {ranks} ranks"


def lost_features(target: Target, algorithm: str | None, kv_algorithm: str | None) -> Problem | None:
    """Why an engine cannot be compiled, or could not do what the target's runtime options ask for.

    The tool switches paged context attention off by itself, with a line in its log (`tensorrt_llm/builder.py`, 1.2).

    Args:
        target: What to build for.
        algorithm: Format of the weights, by TensorRT-LLM's name; None for none.
        kv_algorithm: Format of the KV cache; None for the weights' type.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    sm = int(find_gpu(target.accelerator).sm.removeprefix("sm"))
    integers = kv_algorithm == "INT8" or (algorithm or "").startswith("W8A8_SQ") or algorithm in _NOT_ON_BLACKWELL
    if sm in _BLACKWELL and integers:
        return Problem(
            f"engines of {algorithm} weights and a {kv_algorithm or 'plain'} KV cache cannot be built on sm{sm}",
            "use fp8 or nvfp4, or engine: tensorrt_llm_llmapi",
        )
    runtime, settings = target.runtime, build_settings(target)
    wanted = {
        "runtime.chunked_context": runtime.chunked_context,
        "runtime.kv_cache.reuse_blocks": runtime.kv_cache.reuse_blocks,
    }
    lost = [name for name, asked in wanted.items() if asked]
    reason = ""
    if settings["use_paged_context_fmha"] in (False, "disable"):
        reason = "use_paged_context_fmha is off"
    elif settings.get("context_fmha") in (False, "disable"):
        reason = "context_fmha is off"
    elif kv_algorithm == "INT8":
        reason = "it does not work with an INT8 KV cache"
    elif kv_algorithm == "FP8" and (algorithm not in _FP8_ATTENTION or sm < _FIRST_FP8_SM):
        reason = (
            f"with an FP8 KV cache it needs weights in {', '.join(_FP8_ATTENTION)} and a GPU of sm{_FIRST_FP8_SM} or "
            "newer"
        )
    if lost and reason:
        return Problem(
            f"{' and '.join(lost)} need paged context attention, which the engine would not have: {reason}",
            f"set {' and '.join(f'{name}: false' for name in lost)}, or use another kv_cache in the recipe",
        )
    return None


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)  # not `Frozen`: a checkpoint has more fields than these


class _Mapping(_Part):
    world_size: int
    tp_size: int
    pp_size: int


class _Quantization(_Part):
    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None


class BuildCheckpoint(_Part):
    """What `config.json` of a TensorRT-LLM checkpoint says, as far as we need it; an engine's repeats it."""

    architecture: str
    dtype: str
    mapping: _Mapping
    quantization: _Quantization = _Quantization()

    @field_validator("quantization", mode="before")
    @classmethod
    def _may_be_null(cls, value: object) -> object:
        return value or {}


class _Engine(_Part):
    version: str
    pretrained_config: BuildCheckpoint
    build_config: dict[str, Any]


def check_engine(directory: Path, target: Target, checkpoint: BuildCheckpoint) -> None:
    """Check a finished engine: all ranks, the checkpoint's model, the target's version and limits.

    TensorRT-LLM checks none of it when it loads an engine: a server would run with untested limits.

    Raises:
        IntegrityError: It is incomplete or something else; every problem is named.
    """
    engine = load_record(_Engine, directory / "config.json", "not an engine of TensorRT-LLM")
    settings, runtime = build_settings(target), target.runtime
    problems = []
    for rank in range(checkpoint.mapping.world_size):
        file = directory / f"rank{rank}.engine"
        if not file.is_file() or not file.stat().st_size:
            problems.append(f"{file.name} is missing or empty")
    if engine.version != target.runtime_version:
        problems.append(f"it was built by TensorRT-LLM {engine.version}, the target has {target.runtime_version}")
    if engine.pretrained_config != checkpoint:
        problems.append("its pretrained_config is not the checkpoint's")
    for name in ("max_batch_size", "max_seq_len", "max_num_tokens"):  # of the last two, drafts take more
        found, asked = engine.build_config.get(name, 0), int(settings[name])
        if found < asked:
            problems.append(f"{name} is {found}, it should be {asked}")
    plugins = engine.build_config.get("plugin_config") or {}
    if plugins.get("tokens_per_block") != settings["tokens_per_block"]:
        problems.append(f"tokens_per_block is {plugins.get('tokens_per_block')}")
    if (runtime.chunked_context or runtime.kv_cache.reuse_blocks) and not plugins.get("use_paged_context_fmha"):
        problems.append("it has no paged context attention, which runtime.chunked_context and reuse_blocks need")
    if problems:
        raise IntegrityError(
            f"the engine's config differs from what was requested: {'; '.join(problems)}",
            where=str(directory),
            hint="see the build's log for what it changed; nothing is published",
        )
