"""From a target to the LLM-args file of its TensorRT-LLM version. Pure, except that the checkpoint's metadata are read.

Quantization is never written: the runtime takes it from the checkpoint, and refuses it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import yaml
from pydantic import JsonValue

from llm_pipeline.artifacts.checkpoint_files import read_quantization
from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.base.records import Frozen
from llm_pipeline.config.runtime_options import CudaGraphOptions, RuntimeOptions, SpeculativeDecoding
from llm_pipeline.config.target import Target
from llm_pipeline.engines.llm_args.recorded_schema import Dialect, dialect_of

Document = dict[str, JsonValue]

_KV_CACHE_TYPES = {None: "auto", "FP8": "fp8", "NVFP4": "nvfp4", "NVFP4_AFFINE": "nvfp4"}
"""By modelopt's `kv_cache_quant_algo`."""


class LlmArgs(Frozen):
    """An LLM-args file.

    Attributes:
        version: The TensorRT-LLM version whose dialect it is in.
        document: Its content.
    """

    version: str
    document: Document

    @property
    def kv_cache_type(self) -> str:
        """Element type of the KV cache; `auto` is the model's own."""
        cache = self.document["kv_cache_config"]
        return str(cache["dtype"]) if isinstance(cache, dict) else "auto"

    def to_yaml(self) -> str:
        """The file's text, with keys in the order in which they were rendered."""
        text: str = yaml.safe_dump(self.document, sort_keys=False)
        return text


def render_llm_args(
    target: Target, *, model: str, checkpoint: Path | None, dtype: Literal["float16", "bfloat16"] | None = None
) -> LlmArgs:
    """Render a target's LLM args in the dialect of its runtime version.

    Args:
        target: With a `runtime_version`.
        model: What the runtime loads: a directory, relative to where the file is read.
        checkpoint: The same checkpoint here, for the type of its KV cache; None where there is none yet.
        dtype: Precision to load it in; None for its own.

    Raises:
        ConfigError: The target names no runtime version, or `extra_llm_args` give what is rendered already.
        Unsupported: The LLM args of that version are not recorded, or it cannot use the checkpoint's KV cache format.
        IntegrityError: The checkpoint's quantization metadata is damaged.
    """
    if target.runtime_version is None:
        raise ConfigError(
            f"LLM args are TensorRT-LLM's, and this target of {target.engine} names no runtime_version of it",
            where=f"targets/{target.name}.yaml",
        )
    dialect = dialect_of(target.runtime_version)
    document: Document = {
        "model": model,
        "trust_remote_code": False,
        **({} if dtype is None else {"dtype": dtype}),
        **_parallelism(target),
        **_limits(target),
        **_scheduling(target.runtime),
        "kv_cache_config": _kv_cache(target, checkpoint),
        "cuda_graph_config": _cuda_graphs(target.runtime.cuda_graphs, target.limits.maximum_sequences),
        **_features(target.runtime, dialect),
    }
    merged = _merge(document, target.runtime.extra_llm_args, ())
    return LlmArgs(version=target.runtime_version, document=merged)


def _parallelism(target: Target) -> Document:
    parallelism = target.parallelism
    document: Document = {
        "tensor_parallel_size": parallelism.tensor,
        "pipeline_parallel_size": parallelism.pipeline,
    }
    if parallelism.expert is not None:
        document["moe_expert_parallel_size"] = parallelism.expert
    if target.runtime.attention_data_parallel:
        document["enable_attention_dp"] = True
    return document


def _limits(target: Target) -> Document:
    return {
        "max_batch_size": target.limits.maximum_sequences,
        "max_num_tokens": target.limits.maximum_batched_tokens,
        "max_seq_len": target.limits.maximum_tokens_per_request,
        "max_beam_width": target.runtime.beam_width,
    }


def _scheduling(runtime: RuntimeOptions) -> Document:
    return {
        "enable_chunked_prefill": runtime.chunked_context,
        "disable_overlap_scheduler": not runtime.overlap_scheduler,
        "scheduler_config": {"capacity_scheduler_policy": runtime.scheduler.upper()},
        "stream_interval": runtime.stream_interval,
    }


def _kv_cache(target: Target, checkpoint: Path | None) -> Document:
    options, blocks = target.runtime.kv_cache, target.limits.kv_cache_blocks
    most = [tokens for tokens in (options.maximum_tokens, blocks and blocks * options.tokens_per_block) if tokens]
    document: Document = {
        "free_gpu_memory_fraction": options.free_memory_fraction,
        "enable_block_reuse": options.reuse_blocks,
        "tokens_per_block": options.tokens_per_block,
        "dtype": _kv_cache_type(checkpoint),
    }
    if most:
        document["max_tokens"] = min(most)
    if options.host_gib:
        document["host_cache_size"] = int(options.host_gib * 2**30)
    if options.attention_windows is not None:
        document["max_attention_window"] = list(options.attention_windows)
    if options.sink_tokens is not None:
        document["sink_token_length"] = options.sink_tokens
    return document


def _kv_cache_type(checkpoint: Path | None) -> str:
    algorithm = None if checkpoint is None else read_quantization(checkpoint).kv_cache
    if algorithm not in _KV_CACHE_TYPES:
        raise Unsupported(
            f"the LLM API has no KV cache of {algorithm}",
            where=str(checkpoint),
            hint="quantize with kv_cache: fp8, or none",
        )
    return _KV_CACHE_TYPES[algorithm]


def _cuda_graphs(options: CudaGraphOptions | None, maximum_sequences: int) -> Document | None:
    """Never with `batch_sizes` besides: 1.2.x refuses both together."""
    if options is None:
        return None
    return {
        "enable_padding": options.padding,
        "max_batch_size": options.maximum_batch_size or maximum_sequences,
    }


def _features(runtime: RuntimeOptions, dialect: Dialect) -> Document:
    document: Document = {}
    if runtime.moe_backend is not None:
        document["moe_config"] = {"backend": runtime.moe_backend}
    if runtime.guided_decoding is not None:
        document["guided_decoding_backend"] = runtime.guided_decoding
    if runtime.speculative is not None:
        document["speculative_config"] = _speculation(runtime.speculative, dialect)
    return document


def _speculation(options: SpeculativeDecoding, dialect: Dialect) -> Document:
    document: Document = {
        "decoding_type": dialect.decoding_types[options.method],
        dialect.draft_length_keys.get(options.method, "max_draft_len"): options.draft_tokens,
    }
    if options.draft_model is not None:
        document[dialect.draft_model_key] = options.draft_model
    return document


def _merge(rendered: Mapping[str, JsonValue], extra: Mapping[str, JsonValue], path: tuple[str, ...]) -> Document:
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
                where="target.runtime.extra_llm_args",
                hint="leave it out, and set the target's own option",
            )
    return merged
