"""How Triton serves an engine: queueing, streaming and instances.

What each option is called in Triton and TensorRT-LLM stands in `triton_names`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from llm_pipeline.config.model import (
    BatchSize,
    CheckMilliseconds,
    ConfigModel,
    Gpu,
    Instances,
    Microseconds,
    ParameterValue,
    PathText,
    PriorityLevel,
    Queue,
    Small,
    Word,
)

DecodingMode = Literal[
    "auto", "top_k", "top_p", "top_k_top_p", "beam_search", "medusa", "redrafter", "lookahead", "eagle"
]


PriorityLevels = Annotated[int, Field(ge=0, le=1000)]
InstanceGpus = Annotated[tuple[Gpu, ...], Field(min_length=1, max_length=1024)]
DraftPath = Annotated[tuple[Annotated[int, Field(ge=0, le=65_535)], ...], Field(max_length=64)]
FloatValue = Annotated[float, Field(ge=-1e18, le=1e18)]


class QueuePolicy(ConfigModel):
    """What happens to requests that wait.

    Attributes:
        timeout_action: `reject` a request that waited too long, or `delay` it behind all others.
        timeout_microseconds: What too long is; 0 for never.
        allow_timeout_override: A request may bring a shorter time-out of its own.
        maximum_queued: Requests that may wait; 0 for no limit.
    """

    timeout_action: Literal["reject", "delay"] = "reject"
    timeout_microseconds: Microseconds = 0
    allow_timeout_override: bool = False
    maximum_queued: Queue = 0


class LookaheadOptions(ConfigModel):
    """Sizes of lookahead decoding, in tokens.

    Attributes:
        window: Positions that are guessed at a time.
        ngram: Length of a guess.
        verification_set: Guesses that are checked in a step.
    """

    window: Small
    ngram: Small
    verification_set: Small


class ServingOptions(ConfigModel):
    """How Triton serves a compiled engine. Those that count with the LLM API, too, say so.

    Attributes:
        streaming: Answers come token by token: the model's transactions are decoupled.
        batching: In-flight fused batching, or TensorRT-LLM's static one.
        preferred_batch_sizes: Batches that do not wait for more requests; empty for the largest batch only.
        queue_delay_microseconds: Longest wait for more requests to batch with. Engines batch in flight: 0 is right.
        queue: Of requests without a priority, and of those whose level has no policy of its own.
        priority_levels: Levels, 1 being the most urgent; 0 for none.
        default_priority_level: Level of a request that names none; 0 only without levels.
        priority_queues: Policies by level.
        preprocessing_instances: Instances of the tokenizing model.
        postprocessing_instances: Instances of the detokenizing model.
        bls_instances: Instances of the model that calls the others: requests at a time.
        gpu_device_ids: GPUs of each instance of the engine; empty for one on all of the server's. LLM API, too.
        accumulate_tokens: Each streamed answer holds all tokens so far.
        exclude_input: Answers do not repeat the prompt.
        add_special_tokens: The tokenizer adds the model's own, such as a begin-of-text token. LLM API, too.
        skip_special_tokens: Answers do not show them. LLM API, too.
        cancellation_check_milliseconds: How often cancelled requests are looked for. LLM API, too.
        statistics_milliseconds: How often the batcher's statistics are collected.
        decoding_mode: How the next token is picked.
        lookahead: Sizes of `lookahead` decoding.
        draft_tree: Paths of the tree of `medusa` or `eagle` drafts: which guess is taken at each depth.
        draft_model_name: Triton's name of the draft model, for `draft_model` decoding.
        tokenizer_info_path: The tokenizer as xgrammar's JSON on the serving host, for guided decoding by an engine.
        executor_worker_path: Where the serving container has TensorRT-LLM's worker.
        extra_parameters: More parameters of the `tensorrt_llm` model by their key, checked against the recorded ones.
    """

    streaming: bool = True
    batching: Literal["inflight_fused_batching", "V1"] = "inflight_fused_batching"
    preferred_batch_sizes: Annotated[tuple[BatchSize, ...], Field(max_length=256)] = ()
    queue_delay_microseconds: Microseconds = 0
    queue: QueuePolicy = QueuePolicy()
    priority_levels: PriorityLevels = 0
    default_priority_level: PriorityLevels = 0
    priority_queues: Annotated[dict[PriorityLevel, QueuePolicy], Field(max_length=1000)] = Field(default={})
    preprocessing_instances: Instances = 1
    postprocessing_instances: Instances = 1
    bls_instances: Instances = 8
    gpu_device_ids: Annotated[tuple[InstanceGpus, ...], Field(max_length=1024)] = ()
    accumulate_tokens: bool = False
    exclude_input: bool = True
    add_special_tokens: bool = True
    skip_special_tokens: bool = True
    cancellation_check_milliseconds: CheckMilliseconds = 100
    statistics_milliseconds: CheckMilliseconds = 100
    decoding_mode: DecodingMode = "auto"
    lookahead: LookaheadOptions | None = None
    draft_tree: Annotated[tuple[DraftPath, ...], Field(max_length=4096)] = ()
    draft_model_name: Word | None = None
    tokenizer_info_path: PathText | None = None
    executor_worker_path: PathText = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"
    extra_parameters: Annotated[dict[Word, ParameterValue | FloatValue], Field(max_length=256)] = Field(default={})

    @model_validator(mode="after")
    def _fits_together(self) -> ServingOptions:
        if problems := [*self._priority_problems(), *self._decoding_problems(), *self._number_problems()]:
            raise ValueError("; ".join(problems))
        return self

    def _priority_problems(self) -> Iterator[str]:
        levels = self.priority_levels
        if levels and not 1 <= self.default_priority_level <= levels:
            yield f"default_priority_level must be 1 to {levels}, the number of priority_levels"
        if not levels and self.default_priority_level:
            yield "default_priority_level needs priority_levels"
        if outside := sorted(level for level in self.priority_queues if not 1 <= level <= levels):
            yield f"priority_queues has levels {outside} outside 1 to priority_levels ({levels})"

    def _decoding_problems(self) -> Iterator[str]:
        if (self.lookahead is not None) != (self.decoding_mode == "lookahead"):
            yield "lookahead and decoding_mode lookahead need each other"
        if self.draft_tree and self.decoding_mode not in ("medusa", "eagle"):
            yield "draft_tree needs decoding_mode medusa or eagle"

    def _number_problems(self) -> Iterator[str]:
        devices = [device for instance in self.gpu_device_ids for device in instance]
        if len(set(devices)) < len(devices):
            yield "gpu_device_ids names a GPU twice: instances would share its memory"
