"""Inputs and outputs of a model configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from llm_pipeline.serving.triton_config.recorded import RecordedTensor

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig


def add_tensors(
    config: ModelConfig,
    inputs: Iterable[RecordedTensor],
    outputs: Iterable[RecordedTensor],
    types: Mapping[str, str],
) -> None:
    """Add recorded tensors to a configuration; `types` has those that depend on the engine, in Triton's words."""
    for tensor in inputs:
        added = config.input.add(
            name=tensor.name,
            data_type=_type_number(tensor, types),
            dims=tensor.dims,
            optional=tensor.optional,
            allow_ragged_batch=tensor.ragged,
        )
        if tensor.scalar:
            added.reshape.SetInParent()
    for tensor in outputs:
        config.output.add(name=tensor.name, data_type=_type_number(tensor, types), dims=tensor.dims)


def _type_number(tensor: RecordedTensor, types: Mapping[str, str]) -> int:
    from tritonclient.grpc import model_config_pb2 as messages

    number: int = messages.DataType.Value(types.get(tensor.data_type, tensor.data_type))
    return number
