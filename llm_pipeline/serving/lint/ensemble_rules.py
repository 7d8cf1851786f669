"""Rules of ensembles: that every tensor is made once and used (triton core, ensemble_utils.cc)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from llm_pipeline.serving.lint.ensemble_graph import graph_rules
from llm_pipeline.serving.lint.ensemble_types import type_rules
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
    yield from type_rules(model, repository)
    yield from graph_rules(model, repository)


def _fields(model: ModelSource) -> Iterator[Finding]:
    config = model.config
    if config.platform != "ensemble":
        message = f"it has steps, and its platform is {config.platform or 'not set'}: the server refuses it"
        line = model.field_line("platform") or model.field_line("ensemble_scheduling")
        yield model.finding("ensemble_platform", message, 'platform: "ensemble"', line)
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
    line = model.string_line(step.model_name) if step.model_name else model.field_line("step")
    for field in ("model_name", "input_map", "output_map"):
        if not getattr(step, field):
            message = f"a step{f' of {step.model_name}' * bool(step.model_name)} has no {field}: the server refuses it"
            yield model.finding("step_field", message, f"set {field}", line)
    called = repository.models.get(step.model_name)
    if not step.model_name:
        return
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
    yield from _version(model, step, called, line)


def _version(
    model: ModelSource, step: ModelEnsembling.Step, called: ModelSource, line: int | None
) -> Iterator[Finding]:
    """A step may ask for one version, which must be there and loaded."""
    asked, there = step.model_version, [int(version.name) for version in called.versions]
    policy = called.config.version_policy
    if policy.specific.versions:
        there = [version for version in there if version in policy.specific.versions]
    elif not policy.HasField("all"):
        there = there[-(policy.latest.num_versions or 1) :]
    if asked > 0 and asked not in there:
        loaded = ", ".join(map(str, there)) or "none"
        message = f"its step asks for version {asked} of {called.name}, which loads {loaded}"
        yield model.finding("missing_version", message, "model_version: -1 for the latest", line)
