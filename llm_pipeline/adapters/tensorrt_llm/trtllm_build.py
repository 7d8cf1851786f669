"""`trtllm-build` for a target, without TensorRT-LLM: its command line, what it reads, and what it must have written.

Its flags are handed on as a target states them, but for those that would make another engine than the one that is asked
for; the tool itself refuses unknown ones within seconds, before it compiles. Tensor and pipeline parallelism are no
flags: they come from the checkpoint. Without MPI one process builds every rank, `workers` at a time,
each worker on a GPU of its own, so a build needs one host whatever the number of nodes that serve the engine.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.base.json_document import load_record
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

_OURS = frozenset({
    "checkpoint_dir", "output_dir", "max_batch_size", "max_seq_len", "max_decoder_seq_len", "max_input_len",
    "max_num_tokens", "kv_cache_type", "paged_kv_cache", "remove_input_padding", "model_cls_file", "model_cls_name",
    "model_config", "build_config", "dry_run", "strip_plan",
})  # fmt: skip
"""What the target's limits, the recipe and the stage say; what in-flight batching needs; what would run code that
nobody reviewed; and what makes no engine, or one without weights."""

_WITHOUT_VALUE = frozenset({
    "weight_sparsity", "weight_streaming", "fast_build", "enable_debug_output", "monitor_memory",
    "gather_context_logits", "gather_generation_logits", "gather_all_token_logits",
})  # fmt: skip
"""Flags that stand alone; the tool's other switches take `enable` and `disable`."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")


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


def render_build_command(target: Target, checkpoint: Path, output: Path, *, program: str = PROGRAM) -> list[str]:
    """The whole command.

    Args:
        target: What to build for.
        checkpoint: TensorRT-LLM checkpoint; it decides on the number of ranks.
        output: Directory that the tool makes.
        program: The tool.

    Raises:
        ConfigError: Flags that are not legal; all of them are named.
    """
    if problems := command_problems(target):
        raise ConfigError(
            f"options of {PROGRAM} cannot be used: {'; '.join(problems)}",
            where=f"targets/{target.name}.yaml",
            hint="correct them under build, limits and runtime: nothing was built",
        )
    command = [program, "--checkpoint_dir", str(checkpoint), "--output_dir", str(output)]
    command += ["--output_timing_cache", str(output.with_name("timing.cache"))]  # else it is left where the tool starts
    for key, value in build_settings(target).items():
        if key in _WITHOUT_VALUE and isinstance(value, bool):
            command += [f"--{key}"] if value else []
        else:
            text = ("enable" if value else "disable") if isinstance(value, bool) else str(value)
            command += [f"--{key}", *(word.strip() for word in text.split(","))]
    return command


def command_problems(target: Target) -> list[str]:
    """What is wrong with a target's options for the engine builder, one line each; the tool knows its flags itself."""
    problems = []
    for key, value in target.build.flags.items():
        if not _NAME.fullmatch(key):
            problems.append(f"{key!r} is no name of a flag: it is written without dashes")
        elif key in _OURS:
            problems.append(f"--{key} is set by the target, the recipe or the build stage, or makes no engine to serve")
        elif not str(value) or str(value).startswith("-"):
            problems.append(f"--{key} takes a word or a number, not {value!r}")
    tokens = int(build_settings(target)["max_num_tokens"])
    if not target.runtime.chunked_context and tokens < target.limits.maximum_tokens_per_request - 1:
        problems.append(
            f"prompts of more than {tokens} tokens (limits.maximum_batched_tokens) would be refused at run time: "
            "raise it, or set runtime.chunked_context"
        )
    return problems


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
    """Check a finished engine: all ranks, the checkpoint's model, the target's version, limits and runtime options.

    TensorRT-LLM checks none of it when it loads an engine: a server would run with untested limits. The tool itself
    switches paged context attention off where formats or flags do not allow it, with a line in its log.

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
    if (runtime.chunked_context or runtime.kv_cache.reuse_blocks) and not plugins.get("use_paged_context_fmha"):
        problems.append(
            "it has no paged context attention, which runtime.chunked_context and runtime.kv_cache.reuse_blocks need: "
            "set both to false, or use another kv_cache in the recipe"
        )
    if problems:
        raise IntegrityError(
            f"the engine's config differs from what was requested: {'; '.join(problems)}",
            where=str(directory),
            hint="see the build's log for what it changed; nothing is published",
        )
