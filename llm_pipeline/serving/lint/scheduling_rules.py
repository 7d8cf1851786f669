"""Rules of queues, batches and sequences that the server checks at load (triton core, model_config_utils.cc)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from llm_pipeline.serving.lint.parsing import enum_name
from llm_pipeline.serving.lint.repository import Finding, ModelSource, Repository

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelDynamicBatching, ModelSequenceBatching

_VALUES = ("int32_false_true", "fp32_false_true", "bool_false_true")
_CORRELATION = "CONTROL_SEQUENCE_CORRID"
_CORRELATION_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")


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


def sequence_rules(model: ModelSource, _: Repository) -> Iterator[Finding]:
    """Control tensors, preferred batches and slots."""
    if not model.config.HasField("sequence_batching"):
        return
    batching = model.config.sequence_batching
    yield from _control_names(model, batching)
    for tensor in batching.control_input:
        for control in tensor.control:
            yield from _control(model, tensor.name, control)
    yield from _oldest_batch_sizes(model, batching)
    utilization = batching.direct.minimum_slot_utilization
    if not 0.0 <= utilization <= 1.0:
        yield model.finding(
            "slot_utilization",
            f"minimum_slot_utilization is {utilization:g}",
            "a share from 0 to 1",
            model.field_line("minimum_slot_utilization"),
        )


def _control_names(model: ModelSource, batching: ModelSequenceBatching) -> Iterator[Finding]:
    """Each tensor and each kind of control is stated once."""
    line = model.field_line("control_input")
    names = Counter(tensor.name for tensor in batching.control_input)
    if "" in names:
        yield model.finding("sequence_control", "a control tensor has no name", 'name: "..."', line)
    for name in sorted(name for name, count in names.items() if name and count > 1):
        message = f"control tensor {name} is declared twice"
        yield model.finding("sequence_control", message, "declare it once, with one control", model.string_line(name))
    kinds = Counter(_kind(control) for tensor in batching.control_input for control in tensor.control)
    for kind in sorted(kind for kind, count in kinds.items() if count > 1):
        message = f"{kind} has {kinds[kind]} tensors"
        yield model.finding("sequence_control", message, "keep one", model.line(rf"\b{kind}\b"))


def _control(model: ModelSource, name: str, control: ModelSequenceBatching.Control) -> Iterator[Finding]:
    kind, line = _kind(control), model.string_line(name)
    given = {field: len(getattr(control, field)) for field in _VALUES if len(getattr(control, field))}
    if kind == _CORRELATION:
        yield from _correlation(model, name, control, has_values=bool(given))
    elif len(given) != 1:
        stated = " and ".join(given) or "none"
        message = f"{kind} of {name} needs one pair of values, and has {stated}"
        yield model.finding("sequence_control", message, f"one of: {', '.join(_VALUES)}", line)
    elif (field := next(iter(given))) and given[field] != len(("false", "true")):
        message = f"{field} of {name} has {given[field]} values"
        yield model.finding("sequence_control", message, "two: for false and for true", line)


def _correlation(
    model: ModelSource, name: str, control: ModelSequenceBatching.Control, *, has_values: bool
) -> Iterator[Finding]:
    from tritonclient.grpc import model_config_pb2 as messages

    line, data_type = model.string_line(name), enum_name(messages.DataType, control.data_type)
    if has_values:
        message = f"{name} carries the sequence's id, which has no values for false and true"
        yield model.finding("sequence_control", message, f"take out {', '.join(_VALUES)}", line)
    if data_type not in _CORRELATION_TYPES:
        message = f"{name} carries the sequence's id, and is {data_type}"
        yield model.finding("sequence_control", message, f"data_type: {' or '.join(_CORRELATION_TYPES)}", line)


def _oldest_batch_sizes(model: ModelSource, batching: ModelSequenceBatching) -> Iterator[Finding]:
    largest = model.config.max_batch_size
    if wrong := [size for size in batching.oldest.preferred_batch_size if not 1 <= size <= largest]:
        yield model.finding(
            "preferred_batch_size",
            f"preferred batches {wrong} are outside 1 to max_batch_size ({largest})",
            f"sizes from 1 to {largest}",
            model.field_line("preferred_batch_size"),
        )


def _kind(control: ModelSequenceBatching.Control) -> str:
    return enum_name(type(control).Kind, control.kind)
