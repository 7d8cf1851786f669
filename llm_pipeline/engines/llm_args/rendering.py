"""From a target to the LLM-args file of its TensorRT-LLM version. Pure, except that the checkpoint's metadata are read.

Quantization is never written: the runtime takes it from the checkpoint, and refuses it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_pipeline.artifacts.checkpoint_files import read_quantization
from llm_pipeline.artifacts.repository_layout import CHECKPOINT_DIRECTORY
from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.config.quantization import Precision
from llm_pipeline.config.target import TOKENS_PER_BLOCK, Target
from llm_pipeline.engines.llm_args.recorded_schema import edition_of

Document = dict[str, Any]

_KV_CACHE_TYPES = {None: "auto", "FP8": "fp8", "NVFP4": "nvfp4", "NVFP4_AFFINE": "nvfp4"}
"""By modelopt's `kv_cache_quant_algo`."""


def render_llm_args(target: Target, *, checkpoint: Path | None, dtype: Precision | None = None) -> Document:
    """Render a target's LLM args in the dialect of its runtime version.

    Args:
        target: With a `runtime_version`.
        checkpoint: The same checkpoint here, for the type of its KV cache; None where there is none yet.
        dtype: Precision to load it in; None for its own.

    Raises:
        ConfigError: The target names no runtime version, or `engine_args` give what is rendered already.
        Unsupported: The LLM args of that version are not recorded, or it cannot use the checkpoint's KV cache format.
        IntegrityError: The checkpoint's quantization metadata is damaged.
    """
    if target.runtime_version is None:
        problem = f"LLM args are TensorRT-LLM's, and this target of {target.engine} names no runtime_version of it"
        raise ConfigError(problem, where=f"targets/{target.name}.yaml")
    edition_of(target.runtime_version)  # refuses a version whose LLM args are not recorded
    parallelism, limits, runtime = target.parallelism, target.limits, target.runtime
    kv_cache: Document = {
        "free_gpu_memory_fraction": runtime.kv_cache.free_memory_fraction,
        "enable_block_reuse": runtime.kv_cache.reuse_blocks,
        "dtype": _kv_cache_type(checkpoint),
    }
    if limits.kv_cache_blocks:
        kv_cache["max_tokens"] = limits.kv_cache_blocks * TOKENS_PER_BLOCK
    document: Document = {
        "model": CHECKPOINT_DIRECTORY,  # beside the file, in a model repository
        "trust_remote_code": False,
        **({} if dtype is None else {"dtype": dtype}),
        "tensor_parallel_size": parallelism.tensor,
        "pipeline_parallel_size": parallelism.pipeline,
        **({} if parallelism.expert is None else {"moe_expert_parallel_size": parallelism.expert}),
        "max_batch_size": limits.maximum_sequences,
        "max_num_tokens": limits.maximum_batched_tokens,
        "max_seq_len": limits.maximum_tokens_per_request,
        "enable_chunked_prefill": runtime.chunked_context,
        "scheduler_config": {"capacity_scheduler_policy": runtime.scheduler.upper()},
        "kv_cache_config": kv_cache,
        # Never with `batch_sizes` besides: 1.2.x refuses both together.
        "cuda_graph_config": (
            {"enable_padding": True, "max_batch_size": limits.maximum_sequences} if runtime.cuda_graphs else None
        ),
    }
    return _merge(document, runtime.engine_args, ())


def _kv_cache_type(checkpoint: Path | None) -> str:
    algorithm = None if checkpoint is None else read_quantization(checkpoint).kv_cache
    if algorithm not in _KV_CACHE_TYPES:
        hint = "quantize with kv_cache: fp8, or none"
        raise Unsupported(f"the LLM API has no KV cache of {algorithm}", where=str(checkpoint), hint=hint)
    return _KV_CACHE_TYPES[algorithm]


def _merge(rendered: Mapping[str, Any], extra: Mapping[str, Any], path: tuple[str, ...]) -> Document:
    """The rendered keys and the extra ones, of which none may be rendered already."""
    merged: Document = dict(rendered)
    for key, value in extra.items():
        ours = merged.get(key)
        if key not in merged:
            merged[key] = value
        elif isinstance(ours, dict) and isinstance(value, dict):
            merged[key] = _merge(ours, value, (*path, key))
        else:
            raise ConfigError(
                f"{'.'.join((*path, key))} is rendered from the target already, as {ours!r}",
                where="target.runtime.engine_args",
                hint="leave it out, and set the target's own option",
            )
    return merged
