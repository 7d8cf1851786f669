"""Rules of sequence batching, which the server checks when it loads a model (triton core, model_config_utils.cc)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from llm_pipeline.serving.lint.finding import Finding
from llm_pipeline.serving.lint.repository import ModelSource, Repository

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelSequenceBatching

_VALUES = ("int32_false_true", "fp32_false_true", "bool_false_true")
_CORRELATION = "CONTROL_SEQUENCE_CORRID"
_CORRELATION_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")


def sequence_rules(model: ModelSource, _: Repository) -> Iterator[Finding]:
    """Control tensors, preferred batches and slots."""
    if not model.config.HasField("sequence_batching"):
        return
    batching = model.config.sequence_batching
    yield from _control_names(model, batching)
    for tensor in batching.control_input:
        for control in tensor.control:
            yield from _control(model, tensor.name, control)
    yield from _batch_sizes(model, batching)
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

    line, data_type = model.string_line(name), messages.DataType.Name(control.data_type)
    if has_values:
        message = f"{name} carries the sequence's id, which has no values for false and true"
        yield model.finding("sequence_control", message, f"take out {', '.join(_VALUES)}", line)
    if data_type not in _CORRELATION_TYPES:
        message = f"{name} carries the sequence's id, and is {data_type}"
        yield model.finding("sequence_control", message, f"data_type: {' or '.join(_CORRELATION_TYPES)}", line)


def _batch_sizes(model: ModelSource, batching: ModelSequenceBatching) -> Iterator[Finding]:
    largest = model.config.max_batch_size
    if wrong := [size for size in batching.oldest.preferred_batch_size if not 1 <= size <= largest]:
        yield model.finding(
            "preferred_batch_size",
            f"preferred batches {wrong} are outside 1 to max_batch_size ({largest})",
            f"sizes from 1 to {largest}",
            model.field_line("preferred_batch_size"),
        )


def _kind(control: ModelSequenceBatching.Control) -> str:
    name: str = type(control).Kind.Name(control.kind)
    return name
