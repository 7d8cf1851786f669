"""Rules of tensors that the server makes itself: of the batch, as triton core's `ValidateBatchIO` checks them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from llm_pipeline.serving.lint.finding import Finding
from llm_pipeline.serving.lint.repository import ModelSource, Repository

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import BatchInput, BatchOutput

_TYPES = ("TYPE_INT32", "TYPE_FP32")


def batch_io_rules(model: ModelSource, _: Repository) -> Iterator[Finding]:
    """Sources, targets and types of `batch_input` and `batch_output`."""
    config = model.config
    inputs = {tensor.name for tensor in config.input}
    outputs = {tensor.name for tensor in config.output}
    yield from _sources(model, "batch_input", config.batch_input, inputs)
    yield from _sources(model, "batch_output", config.batch_output, inputs)
    for batch in config.batch_input:
        yield from _type(model, batch)
    for batch in config.batch_output:
        yield from _targets(model, list(batch.target_name), outputs)


def _sources(
    model: ModelSource, field: str, batches: Iterable[BatchInput | BatchOutput], inputs: Collection[str]
) -> Iterator[Finding]:
    """Every kind is made from exactly one input of the model."""
    for batch in batches:
        sources = list(batch.source_input)
        if len(sources) != 1:
            message = f"{field} names {len(sources)} source inputs, and every kind is made from one"
            yield model.finding(field, message, 'source_input: "..."', model.field_line(field))
        for name in sources:
            if name not in inputs:
                fix = f"one of: {', '.join(sorted(inputs)) or 'none'}"
                yield model.finding(field, f"the model has no input {name}", fix, model.string_line(name))


def _type(model: ModelSource, batch: BatchInput) -> Iterator[Finding]:
    from tritonclient.grpc import model_config_pb2 as messages

    name = messages.DataType.Name(batch.data_type)
    if name not in _TYPES:
        message = f"a batch input is {name}"
        yield model.finding(
            "batch_input", message, f"data_type: {' or '.join(_TYPES)}", model.field_line("batch_input")
        )


def _targets(model: ModelSource, targets: list[str], outputs: Collection[str]) -> Iterator[Finding]:
    for name in sorted(set(targets)):
        if name not in outputs:
            fix = f"one of: {', '.join(sorted(outputs)) or 'none'}"
            yield model.finding("batch_output", f"the model has no output {name}", fix, model.string_line(name))
        if targets.count(name) > 1:
            message = f"output {name} is scattered to twice"
            yield model.finding("batch_output", message, "name it once", model.string_line(name))
