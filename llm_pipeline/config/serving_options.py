"""How Triton serves an engine: queueing, streaming and instances."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from llm_pipeline.config.model import ConfigModel

DecodingMode = Literal[
    "auto", "top_k", "top_p", "top_k_top_p", "beam_search", "medusa", "redrafter", "lookahead", "eagle"
]


class QueuePolicy(ConfigModel):
    """What happens to requests that wait.

    Attributes:
        timeout_action: `reject` a request that waited too long, or `delay` it behind all others.
        timeout_microseconds: What too long is; 0 for never.
        allow_timeout_override: A request may bring a shorter time-out of its own.
        maximum_queued: Requests that may wait; 0 for no limit.
    """

    timeout_action: Literal["reject", "delay"] = "reject"
    timeout_microseconds: int = Field(default=0, ge=0)
    allow_timeout_override: bool = False
    maximum_queued: int = Field(default=0, ge=0)


class ServingOptions(ConfigModel):
    """How Triton serves the engine.

    Attributes:
        queue_delay_microseconds: Longest wait for more requests to batch with. Engines batch in flight: 0 is right.
        queue: Of requests without a priority, and of those whose level has no policy of its own.
        priority_levels: Levels, 1 being the most urgent; 0 for none.
        default_priority_level: Level of a request that names none.
        priority_queues: Policies by level.
        preprocessing_instances: Instances of the tokenizing model.
        postprocessing_instances: Instances of the detokenizing model.
        bls_instances: Instances of the model that calls the others: requests at a time.
        accumulate_tokens: Each streamed answer holds all tokens so far.
        exclude_input: Answers do not repeat the prompt.
        batching: In-flight fused batching, or TensorRT-LLM's static one.
        decoding_mode: How the next token is picked.
        cancellation_check_milliseconds: How often cancelled requests are looked for.
        statistics_milliseconds: How often the batcher's statistics are collected.
        gpu_device_ids: GPUs of each instance; empty for all that the server sees.
        add_special_tokens: The tokenizer adds the model's own, such as a begin-of-text token.
        skip_special_tokens: Answers do not show them.
    """

    queue_delay_microseconds: int = Field(default=0, ge=0)
    queue: QueuePolicy = QueuePolicy()
    priority_levels: int = Field(default=0, ge=0)
    default_priority_level: int = Field(default=0, ge=0)
    priority_queues: dict[int, QueuePolicy] = Field(default={})
    preprocessing_instances: int = Field(default=1, ge=1)
    postprocessing_instances: int = Field(default=1, ge=1)
    bls_instances: int = Field(default=8, ge=1)
    accumulate_tokens: bool = False
    exclude_input: bool = True
    batching: Literal["inflight_fused_batching", "V1"] = "inflight_fused_batching"
    decoding_mode: DecodingMode = "auto"
    cancellation_check_milliseconds: int = Field(default=100, ge=1)
    statistics_milliseconds: int = Field(default=100, ge=1)
    gpu_device_ids: tuple[tuple[int, ...], ...] = ()
    add_special_tokens: bool = True
    skip_special_tokens: bool = True
