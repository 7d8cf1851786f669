"""What an ensemble's steps make of its tensors: what waits for itself, and what comes as several streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from llm_pipeline.serving.lint.finding import Finding
from llm_pipeline.serving.lint.repository import ModelSource, Repository

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelEnsembling

    Steps = Sequence[ModelEnsembling.Step]

_NO_STREAM = 0


def graph_rules(model: ModelSource, repository: Repository) -> Iterator[Finding]:
    """Circles, and streams that meet (triton core, `ValidateEnsembleConfig` and the graph of dependencies)."""
    if model.name in _below(model.name, repository):
        message = "it calls itself, by its own steps or through another ensemble"
        yield model.finding("ensemble_circle", message, "take the step out", model.field_line("ensemble_scheduling"))
    steps = model.config.ensemble_scheduling.step
    made = {name for step in steps for name in step.output_map.values()}
    order = _order(steps, made)
    waiting = [step for step in steps if all(step is not other for other in order)]
    for name in sorted({name for step in waiting for name in step.output_map.values()}):
        message = f"{name} is never written: what makes it waits for it"
        yield model.finding("tensor_circle", message, "map another input to its step", model.string_line(name))
    if not waiting:
        yield from _streams(model, order, repository)


def _below(name: str, repository: Repository) -> set[str]:
    """All models that an ensemble calls, through others too."""
    found: set[str] = set()
    todo = [name]
    while todo:
        model = repository.models.get(todo.pop())
        called = {step.model_name for step in model.config.ensemble_scheduling.step} if model else set()
        todo.extend(called - found)
        found |= called
    return found


def _order(steps: Steps, made: set[str]) -> list[ModelEnsembling.Step]:
    """The steps that can run, each after those whose tensors it reads; a tensor that no step makes waits for none."""
    ready: set[str] = set()
    order: list[ModelEnsembling.Step] = []
    left = list(steps)
    while runnable := [step for step in left if not (set(step.input_map.values()) & made) - ready]:
        order += runnable
        left = [step for step in left if all(step is not one for one in runnable)]
        ready |= {name for step in runnable for name in step.output_map.values()}
    return order


def _streams(model: ModelSource, order: Steps, repository: Repository) -> Iterator[Finding]:
    """A decoupled model answers any number of times, so that its tensors go with those of no other stream."""
    stream: dict[str, int] = {}
    for number, step in enumerate(order, start=1):
        streams = _streams_of(step.input_map.values(), stream)
        if len(streams) > 1:
            yield _meeting(model, f"the step of {step.model_name}", step.model_name)
        called = repository.models.get(step.model_name)
        is_decoupled = called is not None and called.config.model_transaction_policy.decoupled
        own = number if is_decoupled else max(streams, default=_NO_STREAM)
        stream |= dict.fromkeys(step.output_map.values(), own)
    outputs = [tensor.name for tensor in model.config.output]
    if len(_streams_of(outputs, stream)) > 1:
        yield _meeting(model, "its outputs", outputs[0])


def _streams_of(names: Iterable[str], stream: Mapping[str, int]) -> set[int]:
    return {stream.get(name, _NO_STREAM) for name in names}


def _meeting(model: ModelSource, where: str, name: str) -> Finding:
    message = f"tensors of different decoupled models meet in {where}: which answers belong together is undefined"
    return model.finding("streams_meet", message, "read one decoupled model's outputs only", model.string_line(name))
