"""Queueing of a model: batch sizes, the wait for more requests, time-outs and priorities."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.serving_options import QueuePolicy, ServingOptions

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelQueuePolicy


def apply_queue(config: ModelConfig, serving: ServingOptions, maximum_batch_size: int) -> None:
    """Set a configuration's largest batch and its dynamic batching.

    Args:
        config: Changed in place.
        serving: The queue's policy, priorities and wait.
        maximum_batch_size: Requests of a batch, at least 1: without batches there is no queue policy in Triton.

    Raises:
        ConfigError: A preferred batch is larger than the largest, which the server refuses.
    """
    refuse_large_batches(serving, maximum_batch_size)
    config.max_batch_size = maximum_batch_size
    batching = config.dynamic_batching
    batching.preferred_batch_size[:] = serving.preferred_batch_sizes or (maximum_batch_size,)
    batching.max_queue_delay_microseconds = serving.queue_delay_microseconds
    batching.priority_levels = serving.priority_levels
    batching.default_priority_level = serving.default_priority_level
    _set_policy(batching.default_queue_policy, serving.queue)
    for level, policy in serving.priority_queues.items():
        _set_policy(batching.priority_queue_policy[level], policy)


def refuse_large_batches(serving: ServingOptions, maximum_batch_size: int) -> None:
    """Refuse preferred batches that are larger than the largest.

    Raises:
        ConfigError: There are such.
    """
    if too_large := [size for size in serving.preferred_batch_sizes if size > maximum_batch_size]:
        raise ConfigError(
            f"preferred batches of {too_large} requests exceed the largest batch, {maximum_batch_size}",
            where="serving.preferred_batch_sizes",
            hint="lower serving.preferred_batch_sizes, or raise limits.maximum_sequences",
        )


def _set_policy(message: ModelQueuePolicy, policy: QueuePolicy) -> None:
    message.timeout_action = message.DELAY if policy.timeout_action == "delay" else message.REJECT
    message.default_timeout_microseconds = policy.timeout_microseconds
    message.allow_timeout_override = policy.allow_timeout_override
    message.max_queue_size = policy.maximum_queued
    message.SetInParent()
