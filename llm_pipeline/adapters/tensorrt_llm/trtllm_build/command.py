"""The command line of `trtllm-build` for a target: recorded flags, their rules, and the argument list. Pure.

`data/trtllm_build_flags.json` says where each flag was read and how certain that is. The tool finds some illegal flags
only after minutes, ignores others, and takes values back with a line in its log.

Tensor and pipeline parallelism are no flags: they come from the checkpoint. Without MPI one process builds every rank,
`workers` at a time, each worker on a GPU of its own; with one worker all ranks are built in turn on the first GPU. So a
build needs one host whatever the number of nodes that serve the engine.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import Frozen
from llm_pipeline.catalog.tables import find_gpu
from llm_pipeline.config.target import TOKENS_PER_BLOCK, Target

FlagValue = str | int | bool
_OFF: tuple[FlagValue | None, ...] = (None, False, 0, "", "disable")
PROGRAM = "trtllm-build"
_SET_BY = {
    "checkpoint_dir": "the recipe's tensorrt_llm_checkpoint",
    "output_dir": "the build stage",
    "input_timing_cache": "the build stage",
    "output_timing_cache": "the build stage",
    "max_batch_size": "limits.maximum_sequences",
    "max_seq_len": "limits.maximum_tokens_per_request",
    "max_input_len": "limits.maximum_tokens_per_request",
    "max_num_tokens": "limits.maximum_batched_tokens",
}
_DEFAULTS: dict[str, FlagValue] = {
    "max_beam_width": 1,
    "tokens_per_block": TOKENS_PER_BLOCK,
    "use_paged_context_fmha": True,
    "use_fp8_context_fmha": True,
    "gpt_attention_plugin": "auto",
    "gemm_plugin": "auto",
    "workers": 1,
}
"""What `build.flags` may change. Ranks are compiled by `workers` at a time, each on a GPU of its own."""

_NEVER = {
    "kv_cache_type": "in-flight batching needs the paged KV cache",
    "paged_kv_cache": "in-flight batching needs the paged KV cache",
    "remove_input_padding": "in-flight batching needs packed input",
    "model_config": "an engine is built from a checkpoint with its weights",
    "build_config": "name the flags one by one, so that each can be checked",
    "model_cls_file": "it would run code that nobody reviewed",
    "model_cls_name": "it would run code that nobody reviewed",
    "dry_run": "it makes no engine",
    "strip_plan": "an engine without weights cannot be served as it is",
}


class GpuLimit(Frozen):
    """Compute capabilities (`sm90`) that a flag is limited to, or refused on."""

    only: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


class BuildFlag(Frozen):
    """One flag of `trtllm-build`.

    Attributes:
        name: With its dashes.
        type: `flag` takes no value; `enum+` and `path+` take several.
        status: `deprecated` ones have a better way; `unsupported` ones fail when they are switched on.
        aliases: Other spellings.
        choices: Legal values; None for any of the type.
        gpu: Where it may be used; None for everywhere.
        requires: Flags that must be on with it.
        conflicts: Flags that must not be given with it.
        architectures: The only architectures that it works for; empty for all.
        replacement: What to use instead of a deprecated one.
        precision: Checkpoints that it is for.
        note: What else is known.
        default: The tool's own value.
        default_evidence: How sure the default is.
    """

    name: str
    group: Literal["general", "logits", "lora", "speculative", "plugin", "feature"]
    type: Literal["int", "str", "path", "path+", "enum", "enum+", "flag"]
    status: Literal["current", "deprecated", "unsupported"]
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] | None = None
    gpu: GpuLimit | None = None
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    replacement: str = ""
    precision: str = ""
    note: str = ""
    default: FlagValue | None
    default_evidence: str = "seen"
    meaning: str

    @property
    def key(self) -> str:
        """The name without dashes, as in the engine's `config.json`."""
        return self.name.removeprefix("--")

    @property
    def is_switch(self) -> bool:
        """Whether it is switched with `enable` and `disable`."""
        return self.choices == ("enable", "disable")


@cache
def build_flags() -> dict[str, BuildFlag]:
    """All flags by name without dashes."""
    return {flag.key: flag for flag in map(BuildFlag.model_validate, _table()["flags"])}


@cache
def removed_flags() -> dict[str, str]:
    """Flags of older releases by name without dashes, with what became of them."""
    return {name.removeprefix("--"): reason for name, reason in _table()["removed_flags"].items()}


def find_flag(key: str) -> BuildFlag | None:
    """The flag of that name or alias, without dashes."""
    by_alias = {alias.removeprefix("--"): flag for flag in build_flags().values() for alias in flag.aliases}
    return build_flags().get(key) or by_alias.get(key)


def refused_on(sm: str) -> tuple[str, ...]:
    """Names, without dashes, of the flags that the tool refuses on a compute capability."""
    return tuple(_table()["sm_refusals"].get(sm.removeprefix("sm"), ()))


def is_on(value: FlagValue | None) -> bool:
    """Whether a value switches its flag on."""
    return value not in _OFF


@cache
def _table() -> dict[str, Any]:
    text = (
        files("llm_pipeline.adapters.tensorrt_llm.trtllm_build")
        .joinpath("data/trtllm_build_flags.json")
        .read_text(encoding="utf-8")
    )
    table: dict[str, Any] = json.loads(text)
    return table


def flag_problems(settings: Mapping[str, FlagValue], sm: str) -> tuple[str, ...]:
    """What is wrong with flags (by name without dashes) on a compute capability, one line each."""
    return tuple(problem for key, value in settings.items() for problem in _problems_of(key, value, settings, sm))


def architecture_problems(settings: Mapping[str, FlagValue], architecture: str) -> tuple[str, ...]:
    """Flags that are on and do not work for a model's architecture, one line each."""
    on = (build_flags()[key] for key, value in settings.items() if key in build_flags() and is_on(value))
    return tuple(
        f"{flag.name} works for {', '.join(flag.architectures)} only, this is {architecture}"
        for flag in on
        if flag.architectures and architecture not in flag.architectures
    )


def render_flag(flag: BuildFlag, value: FlagValue) -> list[str]:
    """A legal flag and its value as arguments."""
    if flag.type == "flag":
        return [flag.name] if value else []
    if flag.type.endswith("+"):
        return [flag.name, *_parts(str(value))]
    if flag.is_switch and isinstance(value, bool):
        return [flag.name, "enable" if value else "disable"]
    return [flag.name, str(value)]


def _problems_of(key: str, value: FlagValue, settings: Mapping[str, FlagValue], sm: str) -> Iterator[str]:
    flag = find_flag(key)
    if flag is None:
        yield _unknown(key)
        return
    if wrong := _wrong_value(flag, value):
        yield wrong
        return
    if flag.status == "deprecated":
        yield f"{flag.name} is deprecated: {flag.replacement or flag.note}"
    if not is_on(value):
        return
    if flag.status == "unsupported":
        yield f"{flag.name} is not supported any more: {flag.note}"
    yield from _problems_on_gpu(flag, sm)
    yield from _problems_with_others(flag, settings)


def _unknown(key: str) -> str:
    name = key.removeprefix("--")
    if name in removed_flags():
        return f"--{name} was removed from trtllm-build: {removed_flags()[name]}"
    if key != name:
        return f"write {name} without dashes"
    near = difflib.get_close_matches(name, build_flags(), n=1)
    return f"trtllm-build has no --{name}" + (f"; did you mean {near[0]}?" if near else "")


def _wrong_value(flag: BuildFlag, value: FlagValue) -> str | None:
    if flag.type == "flag":
        return None if isinstance(value, bool) else f"{flag.name} takes true or false, not {value!r}"
    if flag.is_switch and isinstance(value, bool):
        return None
    if flag.type == "int":
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        return None if whole else f"{flag.name} takes a whole number, not {value!r}"
    given = _parts(value) if flag.type.endswith("+") and isinstance(value, str) else [value]
    if not given or not all(isinstance(one, str) and one and not one.startswith("-") for one in given):
        return (
            f"{flag.name} takes {'words, separated by commas' if flag.type.endswith('+') else 'a word'}, not {value!r}"
        )
    illegal = [str(one) for one in given if flag.choices and one not in flag.choices]
    if illegal:
        return f"{flag.name} cannot be {', '.join(illegal)}: it is one of {', '.join(flag.choices or ())}"
    return None


def _problems_on_gpu(flag: BuildFlag, sm: str) -> Iterator[str]:
    limit = flag.gpu
    if flag.key in refused_on(sm) or (limit and sm in limit.refused):
        yield f"{flag.name} is refused on {sm}"
    elif limit and limit.only and sm not in limit.only:
        yield f"{flag.name} is for {', '.join(limit.only)} only, this is {sm}"


def _problems_with_others(flag: BuildFlag, settings: Mapping[str, FlagValue]) -> Iterator[str]:
    for requirement in flag.requires:
        if not is_on(_effective(requirement.partition(" ")[0], settings)):
            yield f"{flag.name} needs {requirement}"
    for name in flag.conflicts:
        if is_on(settings.get(name.removeprefix("--"))):
            yield f"{flag.name} cannot be used with {name}"


def _effective(name: str, settings: Mapping[str, FlagValue]) -> FlagValue | None:
    key = name.removeprefix("--")
    return settings.get(key, build_flags()[key].default)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def build_settings(target: Target) -> dict[str, FlagValue]:
    """The flags that decide what the engine is, by name without dashes; paths are not among them."""
    limits, sequence = target.limits, target.limits.maximum_tokens_per_request
    settings: dict[str, FlagValue] = {
        "max_batch_size": limits.maximum_sequences,
        "max_seq_len": sequence,
        "max_input_len": sequence - 1,
        "max_num_tokens": min(limits.maximum_batched_tokens, limits.maximum_sequences * sequence),
        "kv_cache_type": "paged",
        "remove_input_padding": True,
        **_DEFAULTS,
    }
    return settings | {
        flag.key if (flag := find_flag(key)) else key: value for key, value in target.build.flags.items()
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
    refuse_illegal_flags(target)
    command = [program, "--checkpoint_dir", str(checkpoint), "--output_dir", str(output)]
    for key, value in build_settings(target).items():
        command += render_flag(build_flags()[key], value)
    if timing_cache is not None:
        command += ["--input_timing_cache", str(timing_cache)]
    return [*command, "--output_timing_cache", str(new_timing_cache)]


def refuse_illegal_flags(target: Target) -> None:
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
    """What is wrong with a target's options for the engine builder, one line each.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    sm = find_gpu(target.accelerator).sm
    return (
        *_flags_of_others(target),
        *flag_problems(build_settings(target), sm),
        *_limit_problems(target),
    )


def _flags_of_others(target: Target) -> Iterator[str]:
    """Flags under `build.flags` that another option sets, or that cannot be set."""
    for given in target.build.flags:
        flag = find_flag(given)
        key = flag.key if flag else given
        if key in _SET_BY:
            yield f"--{key} is set by {_SET_BY[key]}, not by build.flags"
        elif key in _NEVER:
            yield f"--{key} cannot be set: {_NEVER[key]}"


def _limit_problems(target: Target) -> Iterator[str]:
    limits, settings = target.limits, build_settings(target)
    ranks, tokens = target.parallelism.world_size, int(settings["max_num_tokens"])
    if tokens < int(settings["tokens_per_block"]):
        yield (
            f"a step of {tokens} tokens (limits.maximum_batched_tokens) is smaller than a KV block of "
            f"{settings['tokens_per_block']}"
        )
    if not target.runtime.chunked_context and tokens < limits.maximum_tokens_per_request - 1:
        yield (
            f"prompts of more than {tokens} tokens (limits.maximum_batched_tokens) would be refused at run time: "
            "raise it, or set runtime.chunked_context"
        )
    if int(settings["workers"]) > ranks:
        yield f"workers is {settings['workers']}, the engine has {ranks} ranks"
    if is_on(settings.get("reduce_fusion")) and target.parallelism.tensor == 1:
        yield "reduce_fusion needs tensor parallelism"
