"""Rules of ensembles: that every tensor is made once and used (triton core, ensemble_utils.cc)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from llm_pipeline.serving.lint.finding import Finding
from llm_pipeline.serving.lint.repository import ModelSource, Repository

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelEnsembling


def ensemble_rules(model: ModelSource, repository: Repository) -> Iterator[Finding]:
    """The wiring of an ensemble, in itself and against its models."""
    if not model.is_ensemble:
        return
    yield from _fields(model)
    yield from _flow(model)
    for step in model.config.ensemble_scheduling.step:
        yield from _step(model, step, repository)


def _fields(model: ModelSource) -> Iterator[Finding]:
    config = model.config
    for name, is_set in (
        ("instance_group", bool(config.instance_group)),
        ("optimization", config.HasField("optimization")),
        ("model_warmup", bool(config.model_warmup)),
    ):
        if is_set:
            message = f"an ensemble runs nothing itself: the server refuses {name}"
            yield model.finding("ensemble_field", message, f"set {name} in its models", model.field_line(name))
    if not config.ensemble_scheduling.step:
        yield model.finding(
            "ensemble_without_steps",
            "the ensemble has no step",
            "ensemble_scheduling { step { ... } }",
            model.field_line("ensemble_scheduling"),
        )


def _flow(model: ModelSource) -> Iterator[Finding]:
    """Follow the tensors from the ensemble's inputs on."""
    steps = model.config.ensemble_scheduling.step
    inputs = [tensor.name for tensor in model.config.input]
    outputs = [tensor.name for tensor in model.config.output]
    read = {name for step in steps for name in step.input_map.values()}
    written = [name for step in steps for name in step.output_map.values()]
    for name in outputs:
        if name not in written:
            unused = ", ".join(sorted(set(written) - read - set(outputs)))
            fix = "map a step's output to it" + (f"; unused so far: {unused}" if unused else "")
            message = f"output {name} is written by no step"
            yield model.finding("output_not_written", message, fix, model.string_line(name))
    for name in sorted(read - set(inputs) - set(written)):
        readers = ", ".join(step.model_name for step in steps if name in step.input_map.values())
        message = f"{readers} reads {name}, which no step writes and which is no input"
        fix = f"add the step that makes {name}, or map another tensor"
        yield model.finding("tensor_not_made", message, fix, model.string_line(name))
    for name in inputs:
        if name not in read:
            message = f"input {name} is used by no step"
            yield model.finding(
                "input_not_used", message, "map it to a step's input, or take it out", model.string_line(name)
            )
    for name in sorted(set(written) - read - set(outputs)):
        message = f"{name} is written, but neither read by a step nor an output"
        yield model.finding("tensor_not_used", message, "map it, or leave it out", model.string_line(name))
    for name in sorted(name for name in set(written) if written.count(name) > 1 or name in inputs):
        message = f"{name} is written more than once"
        yield model.finding("tensor_written_twice", message, "give each its own name", model.string_line(name))


def _step(model: ModelSource, step: ModelEnsembling.Step, repository: Repository) -> Iterator[Finding]:
    line = model.string_line(step.model_name)
    called = repository.models.get(step.model_name)
    if called is None:
        message = f"the repository has no model {step.model_name}"
        near = ", ".join(sorted(set(repository.models) - {model.name})) or "none"
        yield model.finding("unknown_model", message, f"add it; there are: {near}", line)
    elif called.is_readable:
        yield from _mappings(model, step, called, line)


def _mappings(
    model: ModelSource, step: ModelEnsembling.Step, called: ModelSource, line: int | None
) -> Iterator[Finding]:
    config = called.config
    if 0 < config.max_batch_size < model.config.max_batch_size:
        yield model.finding(
            "ensemble_batch",
            f"max_batch_size {model.config.max_batch_size} is above that of its model {called.name},"
            f" {config.max_batch_size}",
            f"max_batch_size: {config.max_batch_size} at most",
            model.field_line("max_batch_size"),
        )
    sides = (("input", config.input, step.input_map), ("output", config.output, step.output_map))
    for kind, tensors, mapping in sides:
        known = {tensor.name for tensor in tensors}
        for name in sorted(set(mapping) - known):
            message = f"{called.name} has no {kind} {name}"
            fix = f"one of: {', '.join(sorted(known)) or 'none'}"
            yield model.finding("unknown_step_tensor", message, fix, model.string_line(name) or line)
    for tensor in config.input:
        if tensor.name not in step.input_map and not tensor.optional:
            message = f"{called.name} needs input {tensor.name}, which its step does not map"
            fix = f'input_map {{ key: "{tensor.name}" value: "..." }}'
            yield model.finding("input_not_mapped", message, fix, line)
    yield from _types(model, step, called)


def _types(model: ModelSource, step: ModelEnsembling.Step, called: ModelSource) -> Iterator[Finding]:
    """Types and shapes of the ensemble's own tensors against those of the model that they are mapped to."""
    from tritonclient.grpc import model_config_pb2 as messages

    for own, theirs, mapping in (
        (model.config.input, called.config.input, step.input_map),
        (model.config.output, called.config.output, step.output_map),
    ):
        outer = {tensor.name: tensor for tensor in own}
        inner = {tensor.name: tensor for tensor in theirs}
        for name, ensemble_name in sorted(mapping.items()):
            if name not in inner or ensemble_name not in outer:
                continue
            first, second = outer[ensemble_name], inner[name]
            line = model.string_line(ensemble_name)
            if first.data_type != second.data_type:
                want = messages.DataType.Name(second.data_type)
                message = f"{ensemble_name} is {messages.DataType.Name(first.data_type)}, {called.name}'s {name} {want}"
                yield model.finding("tensor_type", message, f"data_type: {want}", line)
            elif not _shapes_agree(first.dims, second.dims):
                message = f"{ensemble_name} has dims {list(first.dims)}, {called.name}'s {name} {list(second.dims)}"
                yield model.finding("tensor_dims", message, f"dims: {list(second.dims)}", line)


def _shapes_agree(first: list[int], second: list[int]) -> bool:
    """As the server compares them: -1 agrees with any size."""
    return len(first) == len(second) and all(a == b or -1 in (a, b) for a, b in zip(first, second, strict=True))
