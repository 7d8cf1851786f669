"""What `trtllm-build` is to make of its flags, and whether it did: ranks, version and recorded settings.

The tool changes some settings by itself, with a line in its log (`tensorrt_llm/builder.py` of the 1.2 line: `build`,
`_init_max_seq_len`, `check_max_num_tokens`). A change that the target's runtime options cannot live with is refused
before the build. TensorRT-LLM checks none of it when it loads an engine: a server would run with untested limits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_pipeline.adapters.tensorrt_llm.trtllm_build.checkpoint import BuildCheckpoint, CheckpointConfig
from llm_pipeline.adapters.tensorrt_llm.trtllm_build.command import FlagValue, build_settings, find_flag, is_on
from llm_pipeline.base.errors import IntegrityError, Unsupported
from llm_pipeline.base.json_document import read_object
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.target import Target

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
"""General flags that the tool records as they were given."""

_NOT_ON_BLACKWELL = ("W8A16", "W4A16", "W8A8_SQ", "FP8_PER_CHANNEL_PER_TOKEN")
log = get_logger(__name__)
CONFIG_FILE = "config.json"
_SECTIONS = {"version", "pretrained_config", "build_config"}
_RANK_FILE = re.compile(r"rank(\d+)\.engine")
_SMALLEST_SHARE = 0.3
_USUAL_SHARES = (0.8, 1.5)
"""Engine bytes over checkpoint bytes: a rank's engine holds its weights, and little else."""


@dataclass(frozen=True)
class ContextAttention:
    """The attention kernels of the context phase.

    Attributes:
        paged: Over the paged KV cache: KV reuse and chunked context need it.
        fp8: In FP8.
        why: Why they differ from the request; empty if they do not.
    """

    paged: bool
    fp8: bool
    why: str = ""


def context_attention(algorithm: str | None, kv_algorithm: str | None, sm: str, settings: Settings) -> ContextAttention:
    """The kernels that the tool chooses for a format of weights and of the KV cache on a compute capability."""
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
        reason = kernels.why or "use_paged_context_fmha is off"
        raise Unsupported(
            f"{' and '.join(lost)} need paged context attention, which the engine would not have: {reason}",
            where=where,
            hint=f"set {' and '.join(f'{name}: false' for name in lost)}, or use another kv_cache in the recipe",
        )


def _is_refused(algorithm: str | None) -> bool:
    return algorithm is not None and (algorithm in _NOT_ON_BLACKWELL or algorithm.startswith("W8A8_SQ"))


@dataclass(frozen=True)
class PredictedConfig:
    """The settings that the tool is predicted to record.

    Attributes:
        build: Values of `build_config`, each with all values that are right.
        plugins: The same of its `plugin_config`.
        changes: What the tool changes, for the log.
    """

    build: Mapping[str, Legal]
    plugins: Mapping[str, Legal]
    changes: tuple[str, ...]


def predict_config(target: Target, config: CheckpointConfig, sm: str) -> PredictedConfig:
    """What the engine's `config.json` must record of the flags that we give."""
    settings = build_settings(target)
    kernels = context_attention(config.algorithm, config.kv_algorithm, sm, settings)
    plugins = dict(_plugin_values(settings, config.dtype))
    plugins["use_paged_context_fmha"] = (kernels.paged,)
    plugins["use_fp8_context_fmha"] = (kernels.fp8,)
    if config.algorithm == "NVFP4" and settings.get("gemm_plugin") != "disable":
        plugins["gemm_plugin"] = ("nvfp4",)
    changes = tuple(_changes(target, settings, kernels))
    return PredictedConfig(_build_values(settings), plugins, changes)


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


def check_engine(directory: Path, target: Target, checkpoint: BuildCheckpoint, predicted: PredictedConfig) -> None:
    """Check a finished engine against what was asked.

    Raises:
        IntegrityError: It is incomplete or something else; every problem is named.
    """
    problems = [
        *_rank_problems(directory, checkpoint),
        *_config_problems(directory / CONFIG_FILE, target, checkpoint, predicted),
    ]
    if problems:
        raise IntegrityError(
            f"the engine's config differs from what was requested: {'; '.join(problems)}",
            where=str(directory),
            hint="see the build's log for what it changed; nothing is published",
        )


def engine_rank_bytes(directory: Path, rank: int) -> int:
    """Size of one rank, with its weights where they are kept apart; 0 where there is none."""
    files = (directory / f"rank{rank}.engine", directory / f"rank{rank}_managed_weights.safetensors")
    return sum(path.stat().st_size for path in files if path.is_file())


def _rank_problems(directory: Path, checkpoint: BuildCheckpoint) -> Iterator[str]:
    wanted = set(range(len(checkpoint.rank_bytes)))
    found = {int(match[1]) for path in directory.iterdir() if (match := _RANK_FILE.fullmatch(path.name))}
    for rank in sorted(wanted - found):
        yield f"rank{rank}.engine is missing"
    for rank in sorted(found - wanted):
        yield f"rank{rank}.engine is there, of {len(wanted)} ranks"
    for rank in sorted(wanted & found):
        yield from _size_problem(directory, rank, checkpoint.rank_bytes[rank])


def _size_problem(directory: Path, rank: int, checkpoint_bytes: int) -> Iterator[str]:
    if not (directory / f"rank{rank}.engine").stat().st_size:
        yield f"rank{rank}.engine is empty"
        return
    share = engine_rank_bytes(directory, rank) / checkpoint_bytes
    if share < _SMALLEST_SHARE:
        yield f"rank{rank} has {share:.0%} of its checkpoint's bytes: weights are missing"
    elif not _USUAL_SHARES[0] <= share <= _USUAL_SHARES[1]:
        log.warning("an engine's size is unusual", rank=rank, share_of_checkpoint=round(share, 3))


def _config_problems(
    path: Path, target: Target, checkpoint: BuildCheckpoint, predicted: PredictedConfig
) -> Iterator[str]:
    try:
        config = read_object(path, finite=False)
    except IntegrityError as error:
        yield f"{path.name} cannot be read: {error.message}"
        return
    if set(config) != _SECTIONS:
        yield f"{path.name} does not have exactly {', '.join(sorted(_SECTIONS))}"
        return
    if config["version"] != target.runtime_version:
        yield f"it was built by TensorRT-LLM {config['version']}, the target has {target.runtime_version}"
    yield from _model_problems(config["pretrained_config"], checkpoint)
    build = config["build_config"]
    yield from _differences("build_config", build, predicted.build)
    yield from _differences("plugin_config", build.get("plugin_config") or {}, predicted.plugins)


def _model_problems(recorded: Mapping[str, Any], checkpoint: BuildCheckpoint) -> Iterator[str]:
    given = checkpoint.config
    mapping, quantization = recorded.get("mapping") or {}, recorded.get("quantization") or {}
    found = {
        "architecture": recorded.get("architecture"),
        "tp_size": mapping.get("tp_size"),
        "pp_size": mapping.get("pp_size"),
        "world_size": mapping.get("world_size"),
        "quant_algo": quantization.get("quant_algo"),
        "kv_cache_quant_algo": quantization.get("kv_cache_quant_algo"),
    }
    wanted = {
        "architecture": given.architecture,
        "tp_size": given.mapping.tp_size,
        "pp_size": given.mapping.pp_size,
        "world_size": given.mapping.world_size,
        "quant_algo": given.quantization.quant_algo if given.quantization else None,
        "kv_cache_quant_algo": given.kv_algorithm,
    }
    for name, value in wanted.items():
        if found[name] != value:
            yield f"{name} is {found[name]}, the checkpoint's is {value}"


def _differences(section: str, recorded: Mapping[str, Any], wanted: Mapping[str, Legal]) -> Iterator[str]:
    for name, legal in wanted.items():
        if name not in recorded:
            yield f"{section} has no {name}"
        elif not any(_is_same(recorded[name], value) for value in legal):
            yield f"{section}.{name} is {recorded[name]!r}, it should be {legal[0]!r}"


def _is_same(found: Any, wanted: Any) -> bool:
    """Equal, and of the same type: 1 is not true."""
    return type(found) is type(wanted) and found == wanted
