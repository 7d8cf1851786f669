"""Types and shapes of an ensemble's tensors, wherever one is mapped (triton core, `ValidateTensorConsistency`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llm_pipeline.serving.lint.finding import Finding
from llm_pipeline.serving.lint.repository import ModelSource, Repository

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelInput, ModelOutput

_ANY = -1


@dataclass(frozen=True)
class _Use:
    """One end of a tensor of the ensemble.

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
        """With the batch's."""
        return (_ANY, *self.dims) if self.batched else self.dims


def type_rules(model: ModelSource, repository: Repository) -> Iterator[Finding]:
    """Every use of a tensor against the first one."""
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

    return _Use(owner, messages.DataType.Name(tensor.data_type), dims, batched)


def _agree(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """As the server compares them: -1 agrees with any size."""
    return len(first) == len(second) and all(a == b or _ANY in (a, b) for a, b in zip(first, second, strict=True))
