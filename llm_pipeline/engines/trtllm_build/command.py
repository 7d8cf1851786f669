"""The command line of `trtllm-build` for a target, as an argument list. Pure.

Tensor and pipeline parallelism are no flags: they come from the checkpoint. Without MPI one process builds every rank,
`workers` at a time, each worker on a GPU of its own; with one worker all ranks are built in turn on the first GPU. So a
build needs one host whatever the number of nodes that serve the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.catalog.tables import find_gpu
from llm_pipeline.config.target import Target
from llm_pipeline.engines.trtllm_build.flags import FlagValue, build_flags, find_flag, flag_problems, render_flag

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
    "max_beam_width": "runtime.beam_width",
    "tokens_per_block": "runtime.kv_cache.tokens_per_block",
    "speculative_decoding_mode": "runtime.speculative",
    "max_draft_len": "runtime.speculative.draft_tokens",
    "workers": "build.workers",
    "gemm_plugin": "build.gemm_plugin",
    "gpt_attention_plugin": "build.gpt_attention_plugin",
    "use_paged_context_fmha": "build.paged_context_fmha",
    "use_fp8_context_fmha": "build.fp8_context_fmha",
    "multiple_profiles": "build.multiple_profiles",
    "reduce_fusion": "build.reduce_fusion",
}
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
_SPECULATION = {"draft_model": "draft_tokens_external"}
"""The others need the LLM API, or a checkpoint with a drafter's layers, which no recipe exports."""


def build_settings(target: Target) -> dict[str, FlagValue]:
    """The flags that decide what the engine is, by name without dashes; paths are not among them."""
    limits, runtime, options = target.limits, target.runtime, target.build
    sequence = limits.maximum_tokens_per_request
    settings: dict[str, FlagValue] = {
        "max_batch_size": limits.maximum_sequences,
        "max_seq_len": sequence,
        "max_input_len": sequence - 1,
        "max_num_tokens": min(limits.maximum_batched_tokens, limits.maximum_sequences * sequence),
        "max_beam_width": runtime.beam_width,
        "kv_cache_type": "paged",
        "remove_input_padding": True,
        "tokens_per_block": runtime.kv_cache.tokens_per_block,
        "use_paged_context_fmha": options.paged_context_fmha,
        "use_fp8_context_fmha": options.fp8_context_fmha,
        "gpt_attention_plugin": options.gpt_attention_plugin,
        "multiple_profiles": options.multiple_profiles,
        "reduce_fusion": options.reduce_fusion,
    }
    if options.gemm_plugin is not None:
        settings["gemm_plugin"] = options.gemm_plugin
    if runtime.speculative and runtime.speculative.method in _SPECULATION:
        settings["speculative_decoding_mode"] = _SPECULATION[runtime.speculative.method]
        settings["max_draft_len"] = runtime.speculative.draft_tokens
    given = {flag.key if (flag := find_flag(key)) else key: value for key, value in options.flags.items()}
    return {**settings, **{key: value for key, value in given.items() if key not in settings}}


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
    command += ["--workers", str(target.build.workers)]
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
    limits, runtime, options = target.limits, target.runtime, target.build
    ranks, block = target.parallelism.world_size, runtime.kv_cache.tokens_per_block
    tokens = min(limits.maximum_batched_tokens, limits.maximum_sequences * limits.maximum_tokens_per_request)
    if tokens < block:
        yield f"a step of {tokens} tokens (limits.maximum_batched_tokens) is smaller than a KV block of {block}"
    if not runtime.chunked_context and tokens < limits.maximum_tokens_per_request - 1:
        yield (
            f"prompts of more than {tokens} tokens (limits.maximum_batched_tokens) would be refused at run time: "
            "raise it, or set runtime.chunked_context"
        )
    if options.workers > ranks:
        yield f"build.workers is {options.workers}, the engine has {ranks} ranks"
    if runtime.speculative and runtime.speculative.method not in _SPECULATION:
        known = ", ".join(_SPECULATION)
        yield f"runtime.speculative.method {runtime.speculative.method} is for the LLM API; engines have {known}"
    if options.reduce_fusion and target.parallelism.tensor == 1:
        yield "build.reduce_fusion needs tensor parallelism"
