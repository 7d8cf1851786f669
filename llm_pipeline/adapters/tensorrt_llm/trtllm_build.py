"""`trtllm-build` for a target, without TensorRT-LLM: its command line, what it reads, and what it must have written.

`data/trtllm_build_flags.json` records the flags of its last release and says where each was read. Tensor and pipeline
parallelism are no flags: they come from the checkpoint. Without MPI one process builds every rank, `workers` at a time,
each worker on a GPU of its own, so a build needs one host whatever the number of nodes that serve the engine.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator

from llm_pipeline.base.errors import ConfigError, IntegrityError, Unsupported
from llm_pipeline.base.json_document import load_record
from llm_pipeline.catalog.tables import find_gpu
from llm_pipeline.config.target import TOKENS_PER_BLOCK, Target

FlagValue = str | int | bool
PROGRAM = "trtllm-build"
_DEFAULTS: dict[str, FlagValue] = {
    "max_beam_width": 1,
    "tokens_per_block": TOKENS_PER_BLOCK,
    "use_paged_context_fmha": True,
    "use_fp8_context_fmha": True,
    "gpt_attention_plugin": "auto",
    "gemm_plugin": "auto",
    "workers": 1,
}
"""What `build.flags` may change."""

_NOT_OURS_TO_CHANGE = {
    "checkpoint_dir": "is set by the recipe's tensorrt_llm_checkpoint, not by build.flags",
    "output_dir": "is set by the build stage, not by build.flags",
    "input_timing_cache": "is set by the build stage, not by build.flags",
    "output_timing_cache": "is set by the build stage, not by build.flags",
    "max_batch_size": "is set by limits.maximum_sequences, not by build.flags",
    "max_seq_len": "is set by limits.maximum_tokens_per_request, not by build.flags",
    "max_input_len": "is set by limits.maximum_tokens_per_request, not by build.flags",
    "max_num_tokens": "is set by limits.maximum_batched_tokens, not by build.flags",
    "kv_cache_type": "cannot be set: in-flight batching needs the paged KV cache",
    "paged_kv_cache": "cannot be set: in-flight batching needs the paged KV cache",
    "remove_input_padding": "cannot be set: in-flight batching needs packed input",
    "model_config": "cannot be set: an engine is built from a checkpoint with its weights",
    "build_config": "cannot be set: name the flags one by one, so that each can be checked",
    "model_cls_file": "cannot be set: it would run code that nobody reviewed",
    "model_cls_name": "cannot be set: it would run code that nobody reviewed",
    "dry_run": "cannot be set: it makes no engine",
    "strip_plan": "cannot be set: an engine without weights cannot be served as it is",
}
_FP8_ATTENTION, _FIRST_FP8_SM = ("FP8", "W4A8_AWQ", "NVFP4"), 89
_NOT_ON_BLACKWELL, _BLACKWELL = ("W8A16", "W4A16", "W8A8_SQ", "FP8_PER_CHANNEL_PER_TOKEN"), range(100, 120)


class BuildFlag(BaseModel):
    """One flag of `trtllm-build`, as far as we check it.

    Attributes:
        name: With its dashes.
        type: `flag` takes no value; `enum+` and `path+` take several.
        aliases: Other spellings.
        choices: Legal values; None for any of the type.
    """

    model_config = ConfigDict(frozen=True)  # not `Frozen`: the table records more

    name: str
    type: Literal["int", "str", "path", "path+", "enum", "enum+", "flag"]
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] | None = None

    @property
    def key(self) -> str:
        """The name without dashes, as in the engine's `config.json`."""
        return self.name.removeprefix("--")

    @property
    def is_switch(self) -> bool:
        """Whether it is switched with `enable` and `disable`."""
        return self.choices == ("enable", "disable")

    def arguments(self, value: FlagValue) -> list[str]:
        """The flag with a legal value, as arguments."""
        if self.type == "flag":
            return [self.name] if value else []
        if self.is_switch and isinstance(value, bool):
            return [self.name, "enable" if value else "disable"]
        return [self.name, *_words(str(value))] if self.type.endswith("+") else [self.name, str(value)]

    def problem(self, value: FlagValue) -> str | None:
        """Why the flag does not take a value."""
        if self.is_switch and isinstance(value, bool):
            return None
        if self.type == "flag":
            return None if isinstance(value, bool) else f"{self.name} takes true or false, not {value!r}"
        if self.type == "int":
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            return None if whole else f"{self.name} takes a whole number, not {value!r}"
        if not isinstance(value, str) or not value or value.startswith("-"):
            return f"{self.name} takes a word, not {value!r}"
        given = _words(value) if self.type.endswith("+") else [value]
        illegal = [word for word in given if self.choices and word not in self.choices]
        if illegal:
            return f"{self.name} cannot be {', '.join(illegal)}: it is one of {', '.join(self.choices or ())}"
        return None


def _words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


@cache
def _table() -> dict[str, Any]:
    text = files("llm_pipeline.adapters.tensorrt_llm").joinpath("data/trtllm_build_flags.json").read_text("utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


@cache
def build_flags() -> dict[str, BuildFlag]:
    """All flags by name and by alias, without dashes."""
    flags = [BuildFlag.model_validate(flag) for flag in _table()["flags"]]
    return {name.removeprefix("--"): flag for flag in flags for name in (flag.name, *flag.aliases)}


def build_settings(target: Target) -> dict[str, FlagValue]:
    """The flags that decide what the engine is, by name without dashes; paths are not among them."""
    limits, sequence, known = target.limits, target.limits.maximum_tokens_per_request, build_flags()
    return {
        "max_batch_size": limits.maximum_sequences,
        "max_seq_len": sequence,
        "max_input_len": sequence - 1,
        "max_num_tokens": min(limits.maximum_batched_tokens, limits.maximum_sequences * sequence),
        "kv_cache_type": "paged",
        "remove_input_padding": True,
        **_DEFAULTS,
        **{known[key].key if key in known else key: value for key, value in target.build.flags.items()},
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
        command += build_flags()[key].arguments(value)
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
    """What is wrong with a target's options for the engine builder, one line each."""
    return (*_flag_problems(target), *_limit_problems(target))


def _flag_problems(target: Target) -> Iterator[str]:
    removed, known = _table()["removed_flags"], build_flags()
    for key, value in target.build.flags.items():
        flag = known.get(key)
        if flag is not None and (why := _NOT_OURS_TO_CHANGE.get(flag.key)):
            yield f"{flag.name} {why}"
        elif flag is not None and (problem := flag.problem(value)):
            yield problem
        elif f"--{key}" in removed:
            yield f"--{key} was removed from {PROGRAM}: {removed[f'--{key}']}"
        elif flag is None:
            near = difflib.get_close_matches(key.lstrip("-"), known, n=1)
            yield f"{PROGRAM} has no --{key.lstrip('-')}" + (f"; did you mean {near[0]}?" if near else "")


def _limit_problems(target: Target) -> Iterator[str]:
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


def refuse_lost_features(target: Target, algorithm: str | None, kv_algorithm: str | None) -> None:
    """Refuse a build whose engine could not do what the target's runtime options ask for.

    The tool switches paged context attention off by itself, with a line in its log (`tensorrt_llm/builder.py`, 1.2).

    Args:
        target: What to build for.
        algorithm: Format of the weights, by TensorRT-LLM's name; None for none.
        kv_algorithm: Format of the KV cache; None for the weights' type.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
        Unsupported: KV reuse or chunked context without paged context attention, or a format that the engine
            compiler refuses on that GPU.
    """
    where, sm = f"targets/{target.name}.yaml", int(find_gpu(target.accelerator).sm.removeprefix("sm"))
    integers = kv_algorithm == "INT8" or (algorithm or "").startswith("W8A8_SQ") or algorithm in _NOT_ON_BLACKWELL
    if sm in _BLACKWELL and integers:
        raise Unsupported(
            f"engines of {algorithm} weights and a {kv_algorithm or 'plain'} KV cache cannot be built on sm{sm}",
            where=where,
            hint="use fp8 or nvfp4, or engine: tensorrt_llm_llmapi",
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
        raise Unsupported(
            f"{' and '.join(lost)} need paged context attention, which the engine would not have: {reason}",
            where=where,
            hint=f"set {' and '.join(f'{name}: false' for name in lost)}, or use another kv_cache in the recipe",
        )


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


def read_build_checkpoint(directory: Path, target: Target) -> BuildCheckpoint:
    """The checkpoint that an engine is built from.

    Raises:
        IntegrityError: Its description or the weights of a rank are missing.
        Unsupported: It is spread over other ranks than the target's.
    """
    checkpoint = load_record(BuildCheckpoint, directory / "config.json", "not a TensorRT-LLM checkpoint")
    refuse_other_ranks(target, checkpoint.mapping.tp_size, checkpoint.mapping.pp_size)
    for rank in range(checkpoint.mapping.world_size):
        if not (directory / f"rank{rank}.safetensors").is_file():
            problem = f"the TensorRT-LLM checkpoint has no rank{rank}.safetensors"
            raise IntegrityError(problem, where=str(directory), hint="run the quantize stage again: nothing was built")
    return checkpoint


def refuse_other_ranks(target: Target, tensor: int, pipeline: int) -> None:
    """Refuse a checkpoint that is spread over other ranks than the target: no flag of the tool changes them.

    Raises:
        Unsupported: It is.
    """
    wanted = target.parallelism
    if (tensor, pipeline) != (wanted.tensor, wanted.pipeline):
        raise Unsupported(
            f"the TensorRT-LLM checkpoint is for {tensor} x {pipeline} ranks (tensor x pipeline parallelism), "
            f"{target.name} has {wanted.tensor} x {wanted.pipeline}",
            where=f"targets/{target.name}.yaml",
            hint=f"set the recipe's tensorrt_llm_ranks: {{tensor: {wanted.tensor}, pipeline: {wanted.pipeline}}}, or "
            "use engine: tensorrt_llm_llmapi, which spreads the Hugging Face checkpoint when it loads it",
        )


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
