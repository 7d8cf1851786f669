"""Rules of ensembles: wiring, types and order of their tensors (triton core, ensemble_utils.cc)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llm_pipeline.serving.lint.parsing import enum_name
from llm_pipeline.serving.lint.repository import Finding, ModelSource, Repository

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelEnsembling, ModelInput, ModelOutput

    Steps = Sequence[ModelEnsembling.Step]

_ANY = -1
_NO_STREAM = 0


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
        if not tensors and called.is_completed_by_server:
            continue  # the server learns them of the model itself
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


@dataclass(frozen=True)
class _Use:
    """A declaration of one tensor of the ensemble.

    Attributes:
        owner: What declares it, in words.
        data_type: Triton's name of the type.
        dims: Without the batch.
        batched: Whether the owner's requests come in batches, whose dimension comes first.
    """

    owner: str
    data_type: str
    dims: tuple[int, ...]
    batched: bool

    @property
    def full_dims(self) -> tuple[int, ...]:
        """Dimensions including that of the batch."""
        return (_ANY, *self.dims) if self.batched else self.dims


def type_rules(model: ModelSource, repository: Repository) -> Iterator[Finding]:
    """Every use of a tensor against its first one (triton core, `ValidateTensorConsistency`)."""
    first: dict[str, _Use] = {}
    for name, use in _uses(model, repository):
        known, line = first.setdefault(name, use), model.string_line(name)
        if use.data_type != known.data_type:
            message = f"{name} is {known.data_type} in {known.owner}, and {use.data_type} in {use.owner}"
            yield model.finding("tensor_type", message, f"data_type: {use.data_type}", line)
        elif not (_agree(use.dims, known.dims) or _agree(use.full_dims, known.full_dims)):
            message = f"{name} has dims {list(known.dims)} in {known.owner}, and {list(use.dims)} in {use.owner}"
            yield model.finding("tensor_dims", message, f"dims: {list(use.dims)}", line)


def _uses(model: ModelSource, repository: Repository) -> Iterator[tuple[str, _Use]]:
    """The ensemble's own declarations come first, as the server takes them."""
    config = model.config
    for tensor in (*config.input, *config.output):
        dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
        yield tensor.name, _use("the ensemble", tensor, tuple(dims), batched=config.max_batch_size > 0)
    for step in config.ensemble_scheduling.step:
        called = repository.models.get(step.model_name)
        if called is None or not called.is_readable:
            continue
        batched = called.config.max_batch_size > 0
        for tensors, mapping in ((called.config.input, step.input_map), (called.config.output, step.output_map)):
            for tensor in tensors:
                if tensor.name in mapping:
                    owner = f"{tensor.name} of {called.name}"
                    yield mapping[tensor.name], _use(owner, tensor, tuple(tensor.dims), batched=batched)


def _use(owner: str, tensor: ModelInput | ModelOutput, dims: tuple[int, ...], *, batched: bool) -> _Use:
    from tritonclient.grpc import model_config_pb2 as messages

    return _Use(owner, enum_name(messages.DataType, tensor.data_type), dims, batched)


def _agree(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """As the server compares them: -1 agrees with any size."""
    return len(first) == len(second) and all(a == b or _ANY in (a, b) for a, b in zip(first, second, strict=True))


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
    """The steps that can run, each after those whose tensors it reads; tensors that no step makes are there at once."""
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
