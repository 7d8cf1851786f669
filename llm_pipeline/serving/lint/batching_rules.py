"""Rules of queues and batches, which the server checks when it loads a model (triton core, model_config_utils.cc)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from llm_pipeline.serving.lint.finding import Finding
from llm_pipeline.serving.lint.repository import ModelSource, Repository

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelDynamicBatching


def batching_rules(model: ModelSource, _: Repository) -> Iterator[Finding]:
    """Dynamic batching, priorities, order and the response cache."""
    config = model.config
    if config.HasField("dynamic_batching"):
        yield from _batch_sizes(model, config.dynamic_batching)
        yield from _priorities(model, config.dynamic_batching)
        yield from _order(model, config.dynamic_batching)
    if config.response_cache.enable:
        line = model.field_line("response_cache")
        if config.model_transaction_policy.decoupled:
            message = "the response cache does not work with decoupled models: the server refuses both"
            yield model.finding("response_cache", message, "take response_cache out", line)
        if config.HasField("sequence_batching"):
            message = "the response cache does not work with sequence batching: the server refuses both"
            yield model.finding("response_cache", message, "take response_cache out", line)


def _batch_sizes(model: ModelSource, batching: ModelDynamicBatching) -> Iterator[Finding]:
    largest = model.config.max_batch_size
    line = model.field_line("preferred_batch_size")
    if any(size < 1 for size in batching.preferred_batch_size):
        yield model.finding("preferred_batch_size", "a preferred batch has no requests", "1 or more", line)
    if above := [size for size in batching.preferred_batch_size if size > largest]:
        yield model.finding(
            "preferred_batch_size",
            f"preferred batches {above} are above max_batch_size {largest}: the server refuses them",
            f"{largest} at most, or raise max_batch_size",
            line,
        )
    elif largest == 0:
        yield model.finding(
            "batching_without_batches",
            "dynamic_batching does nothing with max_batch_size 0: requests run one by one",
            "set max_batch_size, or take dynamic_batching out",
            model.field_line("dynamic_batching"),
            "warning",
        )


def _priorities(model: ModelSource, batching: ModelDynamicBatching) -> Iterator[Finding]:
    levels, default = batching.priority_levels, batching.default_priority_level
    if levels and not 1 <= default <= levels:
        yield model.finding(
            "default_priority_level",
            f"default_priority_level is {default}, outside 1 to priority_levels ({levels})",
            f"default_priority_level: 1 to {levels}",
            model.field_line("default_priority_level") or model.field_line("priority_levels"),
        )
    if not levels and (default or batching.priority_queue_policy):
        yield model.finding(
            "priority_levels",
            "priorities without priority_levels do nothing",
            "set priority_levels",
            model.field_line("default_priority_level") or model.field_line("priority_queue_policy"),
        )
    elif outside := sorted(level for level in batching.priority_queue_policy if not 1 <= level <= levels):
        yield model.finding(
            "priority_queue_policy",
            f"policies of levels {outside} are outside 1 to priority_levels ({levels})",
            f"keys 1 to {levels}",
            model.field_line("priority_queue_policy"),
        )


def _order(model: ModelSource, batching: ModelDynamicBatching) -> Iterator[Finding]:
    if not batching.preserve_ordering:
        return
    line = model.field_line("preserve_ordering")
    policies = [batching.default_queue_policy, *batching.priority_queue_policy.values()]
    if batching.priority_levels > 1:
        message = "preserve_ordering allows one priority level only"
        yield model.finding("preserve_ordering", message, "keep the order or the priorities", line)
    if any(policy.default_timeout_microseconds and policy.timeout_action == policy.DELAY for policy in policies):
        message = "preserve_ordering does not go with timeout_action DELAY, which changes the order"
        yield model.finding("preserve_ordering", message, "timeout_action: REJECT, or give up the order", line)
