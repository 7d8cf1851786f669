"""What the options of a target are called in the configurations of Triton's models: one table, read by the writers.

A place is a field of `config.pbtxt` (`dynamic_batching.max_queue_delay_microseconds`), or a parameter's key after
`parameters.`. Source: the templates and `docs/model_config.md` of tensorrtllm_backend, as recorded in
`serving/triton_config/data`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ModelName = Literal["tensorrt_llm", "preprocessing", "postprocessing", "ensemble", "tensorrt_llm_bls"]

_ENGINE: tuple[ModelName, ...] = ("tensorrt_llm",)
_QUEUED: tuple[ModelName, ...] = ("tensorrt_llm", "preprocessing")
_BLS: tuple[ModelName, ...] = ("tensorrt_llm_bls",)
_PREPROCESSING: tuple[ModelName, ...] = ("preprocessing",)
_POSTPROCESSING: tuple[ModelName, ...] = ("postprocessing",)
_ALL: tuple[ModelName, ...] = ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls")
_PARAMETER = "parameters."


@dataclass(frozen=True)
class TritonName:
    """One option of a target, and where it goes.

    Attributes:
        option: Its path in the target.
        place: Field or parameter of `config.pbtxt`.
        models: Models that have it.
        unit: Of the value in `config.pbtxt`, where it has one.
    """

    option: str
    place: str
    models: tuple[ModelName, ...] = _ENGINE
    unit: str = ""

    @property
    def parameter(self) -> str | None:
        """The parameter's key, or None for a field."""
        return self.place.removeprefix(_PARAMETER) if self.place.startswith(_PARAMETER) else None


TRITON_NAMES = (
    TritonName("limits.maximum_sequences", "max_batch_size", _ALL, "requests"),
    TritonName("serving.streaming", "model_transaction_policy.decoupled", (*_ENGINE, *_BLS)),
    TritonName("serving.batching", "parameters.gpt_model_type"),
    TritonName("serving.preferred_batch_sizes", "dynamic_batching.preferred_batch_size", _QUEUED, "requests"),
    TritonName(
        "serving.queue_delay_microseconds", "dynamic_batching.max_queue_delay_microseconds", _QUEUED, "microseconds"
    ),
    TritonName("serving.queue.timeout_action", "dynamic_batching.default_queue_policy.timeout_action", _QUEUED),
    TritonName(
        "serving.queue.timeout_microseconds",
        "dynamic_batching.default_queue_policy.default_timeout_microseconds",
        _QUEUED,
        "microseconds",
    ),
    TritonName(
        "serving.queue.allow_timeout_override", "dynamic_batching.default_queue_policy.allow_timeout_override", _QUEUED
    ),
    TritonName(
        "serving.queue.maximum_queued", "dynamic_batching.default_queue_policy.max_queue_size", _QUEUED, "requests"
    ),
    TritonName("serving.priority_levels", "dynamic_batching.priority_levels", _QUEUED),
    TritonName("serving.default_priority_level", "dynamic_batching.default_priority_level", _QUEUED),
    TritonName("serving.priority_queues", "dynamic_batching.priority_queue_policy", _QUEUED),
    TritonName("serving.preprocessing_instances", "instance_group.count", _PREPROCESSING),
    TritonName("serving.postprocessing_instances", "instance_group.count", _POSTPROCESSING),
    TritonName("serving.bls_instances", "instance_group.count", _BLS),
    TritonName("serving.gpu_device_ids", "parameters.gpu_device_ids"),
    TritonName("runtime.beam_width", "parameters.max_beam_width", unit="beams"),
    TritonName("runtime.scheduler", "parameters.batch_scheduler_policy"),
    TritonName("runtime.chunked_context", "parameters.enable_chunked_context"),
    TritonName("runtime.kv_cache.free_memory_fraction", "parameters.kv_cache_free_gpu_mem_fraction", unit="fraction"),
    TritonName("runtime.kv_cache.maximum_tokens", "parameters.max_tokens_in_paged_kv_cache", unit="tokens"),
    TritonName("runtime.kv_cache.reuse_blocks", "parameters.enable_kv_cache_reuse"),
    TritonName("runtime.kv_cache.host_gib", "parameters.kv_cache_host_memory_bytes", unit="bytes"),
    TritonName("runtime.kv_cache.attention_windows", "parameters.max_attention_window_size", unit="tokens"),
    TritonName("runtime.kv_cache.sink_tokens", "parameters.sink_token_length", unit="tokens"),
    TritonName("runtime.guided_decoding", "parameters.guided_decoding_backend"),
    TritonName("serving.tokenizer_info_path", "parameters.xgrammar_tokenizer_info_path"),
    TritonName("serving.decoding_mode", "parameters.decoding_mode"),
    TritonName("serving.lookahead.window", "parameters.lookahead_window_size", unit="tokens"),
    TritonName("serving.lookahead.ngram", "parameters.lookahead_ngram_size", unit="tokens"),
    TritonName("serving.lookahead.verification_set", "parameters.lookahead_verification_set_size", unit="guesses"),
    TritonName("serving.draft_tree", "parameters.medusa_choices"),
    TritonName("serving.draft_tree", "parameters.eagle_choices"),
    TritonName("serving.draft_model_name", "parameters.tensorrt_llm_draft_model_name", _BLS),
    TritonName("serving.exclude_input", "parameters.exclude_input_in_output"),
    TritonName(
        "serving.cancellation_check_milliseconds", "parameters.cancellation_check_period_ms", unit="milliseconds"
    ),
    TritonName("serving.statistics_milliseconds", "parameters.stats_check_period_ms", unit="milliseconds"),
    TritonName("serving.executor_worker_path", "parameters.executor_worker_path"),
    TritonName("serving.accumulate_tokens", "parameters.accumulate_tokens", _BLS),
    TritonName("serving.add_special_tokens", "parameters.add_special_tokens", _PREPROCESSING),
    TritonName("serving.skip_special_tokens", "parameters.skip_special_tokens", _POSTPROCESSING),
)


def parameters_of(model: ModelName) -> tuple[TritonName, ...]:
    """The options that are parameters of a model."""
    return tuple(name for name in TRITON_NAMES if model in name.models and name.parameter)
