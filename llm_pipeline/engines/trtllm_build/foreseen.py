"""What `trtllm-build` makes of its flags: some it changes by itself, with a line in its log. Pure.

From `tensorrt_llm/builder.py` of the 1.2 line (`build`, `_init_max_seq_len`, `check_max_num_tokens`). A change that the
target's runtime options cannot live with is refused before the build, since the server would find it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from llm_pipeline.base.errors import Unsupported
from llm_pipeline.config.target import Target
from llm_pipeline.engines.trtllm_build.checkpoint_config import CheckpointConfig
from llm_pipeline.engines.trtllm_build.command import build_settings
from llm_pipeline.engines.trtllm_build.flag_table import FlagValue, find_flag, is_on

Settings = Mapping[str, FlagValue]
Legal = tuple[FlagValue | None, ...]
"""All values of a setting that would be right."""

_FP8_ATTENTION = ("FP8", "W4A8_AWQ", "NVFP4")
_FIRST_FP8_SM = 89
_NO_INT_SM = range(100, 120)
_SET_BY_THE_TOOL = ("nccl_plugin", "paged_state", "norm_quant_fusion", "fp8_rowwise_gemm_plugin")
_RECORDED = (
    "profiling_verbosity",
    "weight_sparsity",
    "weight_streaming",
    "gather_context_logits",
    "max_prompt_embedding_table_size",
)
"""General flags that the tool writes down as they were given."""
_NOT_ON_BLACKWELL = ("W8A16", "W4A16", "W8A8_SQ", "FP8_PER_CHANNEL_PER_TOKEN")


@dataclass(frozen=True)
class ContextAttention:
    """The attention kernels of the context phase.

    Attributes:
        paged: Over the paged KV cache: KV reuse and chunked context need it.
        fp8: In FP8.
        why: Why they are not what was asked; empty when they are.
    """

    paged: bool
    fp8: bool
    why: str = ""


def context_attention(algorithm: str | None, kv_algorithm: str | None, sm: str, settings: Settings) -> ContextAttention:
    """The kernels that the tool takes for a format of weights and of the KV cache on a compute capability."""
    paged, fp8 = is_on(settings["use_paged_context_fmha"]), is_on(settings["use_fp8_context_fmha"])
    asked = (paged, fp8)
    why = ""
    if not is_on(settings.get("context_fmha", True)):
        paged, fp8, why = False, False, "context_fmha is disabled"
    elif algorithm not in _FP8_ATTENTION or int(sm.removeprefix("sm")) < _FIRST_FP8_SM:
        paged, fp8 = paged and kv_algorithm != "FP8", False
        why = f"FP8 attention needs weights in {', '.join(_FP8_ATTENTION)} and a GPU of sm{_FIRST_FP8_SM} or newer"
    elif paged:
        fp8 = kv_algorithm == "FP8"
        why = "FP8 paged attention goes with an FP8 KV cache, and only with one"
    if kv_algorithm == "INT8" and paged:
        paged, why = False, "paged attention does not work with an INT8 KV cache"
    return ContextAttention(paged, fp8, why if (paged, fp8) != asked else "")


def refuse_lost_features(target: Target, algorithm: str | None, kv_algorithm: str | None, sm: str) -> None:
    """Refuse a build whose engine could not do what the target's runtime options ask for.

    Args:
        target: What to build for.
        algorithm: Format of the weights, by TensorRT-LLM's name; None for none.
        kv_algorithm: Format of the KV cache; None for the weights' type.
        sm: Compute capability.

    Raises:
        Unsupported: KV reuse or chunked context without paged context attention, or a format that the engine
            compiler refuses on that GPU.
    """
    where = f"targets/{target.name}.yaml"
    if int(sm.removeprefix("sm")) in _NO_INT_SM and (kv_algorithm == "INT8" or _is_refused(algorithm)):
        raise Unsupported(
            f"engines of {algorithm} weights and a {kv_algorithm or 'plain'} KV cache cannot be built on {sm}",
            where=where,
            hint="use fp8 or nvfp4, or engine: tensorrt_llm_llmapi",
        )
    kernels = context_attention(algorithm, kv_algorithm, sm, build_settings(target))
    wanted = {
        "runtime.chunked_context": target.runtime.chunked_context,
        "runtime.kv_cache.reuse_blocks": target.runtime.kv_cache.reuse_blocks,
    }
    lost = [name for name, asked in wanted.items() if asked]
    if lost and not kernels.paged:
        reason = kernels.why or "build.paged_context_fmha is off"
        raise Unsupported(
            f"{' and '.join(lost)} need paged context attention, which the engine would not have: {reason}",
            where=where,
            hint=f"set {' and '.join(f'{name}: false' for name in lost)}, or use another kv_cache in the recipe",
        )


def _is_refused(algorithm: str | None) -> bool:
    return algorithm is not None and (algorithm in _NOT_ON_BLACKWELL or algorithm.startswith("W8A8_SQ"))


@dataclass(frozen=True)
class Foreseen:
    """The values that the tool will record.

    Attributes:
        build: Values of `build_config`, each with all that would be right.
        plugins: The same of its `plugin_config`.
        changes: What the tool changes, for the log.
    """

    build: Mapping[str, Legal]
    plugins: Mapping[str, Legal]
    changes: tuple[str, ...]


def foresee(target: Target, config: CheckpointConfig, sm: str) -> Foreseen:
    """What the engine's `config.json` must say of the flags that we give."""
    settings = build_settings(target)
    kernels = context_attention(config.algorithm, config.kv_algorithm, sm, settings)
    plugins = dict(_plugin_values(settings, config.dtype))
    plugins["use_paged_context_fmha"] = (kernels.paged,)
    plugins["use_fp8_context_fmha"] = (kernels.fp8,)
    if config.algorithm == "NVFP4" and settings.get("gemm_plugin") != "disable":
        plugins["gemm_plugin"] = ("nvfp4",)
    changes = tuple(_changes(target, settings, kernels))
    return Foreseen(_build_values(settings), plugins, changes)


def _plugin_values(settings: Settings, dtype: str) -> Iterator[tuple[str, Legal]]:
    """`auto` is recorded as it is or as the checkpoint's type, `disable` as none."""
    for key, value in settings.items():
        flag = find_flag(key)
        if key == "fast_build":
            yield "manage_weights", (value,)
        if flag is None or flag.group not in ("plugin", "feature") or key in _SET_BY_THE_TOOL:
            continue
        if flag.is_switch:
            yield key, (is_on(value),)
        elif value == "disable":
            yield key, (None, False)
        else:
            yield key, ("auto", dtype) if value == "auto" else (value,)


def _build_values(settings: Settings) -> dict[str, Legal]:
    draft, sequences = int(settings.get("max_draft_len", 0)), int(settings["max_batch_size"])
    length, tokens = int(settings["max_seq_len"]), int(settings["max_num_tokens"])
    if draft:
        length += draft
        tokens = max(tokens, sequences * (draft + 1))
    return {
        **{key: (settings[key],) for key in _RECORDED if key in settings},
        "max_batch_size": (sequences,),
        "max_seq_len": (length,),
        "max_num_tokens": (tokens,),
        "max_beam_width": (settings["max_beam_width"],),
        "max_draft_len": (draft,),
        "kv_cache_type": ("PAGED",),
    }


def _changes(target: Target, settings: Settings, kernels: ContextAttention) -> Iterator[str]:
    asked = (is_on(settings["use_paged_context_fmha"]), is_on(settings["use_fp8_context_fmha"]))
    if (kernels.paged, kernels.fp8) != asked:
        yield (
            f"context attention is paged: {kernels.paged}, FP8: {kernels.fp8}, asked for {asked[0]} and {asked[1]}, "
            f"since {kernels.why}"
        )
    if settings["max_num_tokens"] != target.limits.maximum_batched_tokens:
        yield f"a step takes {settings['max_num_tokens']} tokens: all sequences together have no more"
