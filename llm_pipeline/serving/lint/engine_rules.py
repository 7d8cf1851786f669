"""Rules of the model `tensorrt_llm` of the in-flight batcher set, which runs an engine of TensorRT-LLM 1.0 to 1.2."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from llm_pipeline.serving.lint.engine_files import engine_file_rules
from llm_pipeline.serving.lint.finding import Finding
from llm_pipeline.serving.lint.known_mistakes import TENSORS
from llm_pipeline.serving.lint.parameter_rules import is_engine_model
from llm_pipeline.serving.lint.repository import ModelSource, Repository
from llm_pipeline.serving.triton_config.recorded import RecordedTensor, legal_types, recorded_model

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelInput, ModelOutput


def engine_rules(model: ModelSource, _: Repository) -> Iterator[Finding]:
    """Tensors, batching and placement of a model that runs an engine."""
    if not is_engine_model(model):
        return
    yield from _tensors(model)
    yield from _batching(model)
    yield from _placement(model)
    yield from engine_file_rules(model)


def _tensors(model: ModelSource) -> Iterator[Finding]:
    recorded = recorded_model("tensorrt_llm")
    required = {tensor.name for tensor in recorded.inputs if not tensor.optional} | {"output_ids"}
    sides: tuple[tuple[str, tuple[RecordedTensor, ...], Iterable[ModelInput | ModelOutput]], ...] = (
        ("input", recorded.inputs, model.config.input),
        ("output", recorded.outputs, model.config.output),
    )
    for kind, known, declared in sides:
        names = {tensor.name for tensor in declared}
        for tensor in known:
            if tensor.name in required - names:
                yield model.finding(
                    "missing_tensor",
                    f"{kind} {tensor.name} is not declared, and the backend needs it",
                    _declaration(tensor),
                    model.field_line(kind),
                )
        by_name = {tensor.name: tensor for tensor in known}
        for found in declared:
            if found.name in by_name:
                yield from _tensor(model, kind, found, by_name[found.name])
            else:
                yield model.finding(
                    "unknown_tensor",
                    f"the backend has no {kind} {found.name}",
                    TENSORS.get(found.name, "take it out"),
                    model.string_line(found.name),
                )


def _tensor(
    model: ModelSource, kind: str, found: ModelInput | ModelOutput, recorded: RecordedTensor
) -> Iterator[Finding]:
    from tritonclient.grpc import model_config_pb2 as messages

    line = model.string_line(found.name)
    data_type, legal = messages.DataType.Name(found.data_type), legal_types(recorded.data_type)
    if data_type not in legal:
        message = f"{kind} {found.name} is {data_type}"
        yield model.finding("tensor_type", message, f"data_type: {' or '.join(legal)}", line)
    if tuple(found.dims) != recorded.dims:
        message = f"{kind} {found.name} has dims {list(found.dims)}; the backend has {list(recorded.dims)}"
        yield model.finding("tensor_dims", message, f"dims: {list(recorded.dims)}", line)
    if recorded.scalar and not (found.HasField("reshape") and not found.reshape.shape):
        message = f"{kind} {found.name} is one value a request, which the backend reads without dimensions"
        yield model.finding("tensor_reshape", message, "reshape: { shape: [ ] }", line)


def _declaration(tensor: RecordedTensor) -> str:
    reshape = " reshape: { shape: [ ] }" if tensor.scalar else ""
    return f'{{ name: "{tensor.name}" data_type: {tensor.data_type} dims: {list(tensor.dims)}{reshape} }}'


def _batching(model: ModelSource) -> Iterator[Finding]:
    delay = model.config.dynamic_batching.max_queue_delay_microseconds
    if delay:
        yield model.finding(
            "queue_delay",
            f"requests wait up to {delay} microseconds for a batch, and the engine batches in flight by itself",
            "max_queue_delay_microseconds: 0",
            model.field_line("max_queue_delay_microseconds"),
            "warning",
        )
    if model.parameter("gpt_model_type").upper() == "V1":
        yield model.finding(
            "static_batching",
            "gpt_model_type V1 batches statically: every request waits for the longest of its batch",
            'string_value: "inflight_fused_batching"',
            model.string_line("gpt_model_type"),
            "warning",
        )
    if model.config.HasField("sequence_batching"):
        message = "sequence batching in front of an engine that batches in flight by itself"
        yield model.finding(
            "batching_twice", message, "take sequence_batching out", model.field_line("sequence_batching")
        )


def _placement(model: ModelSource) -> Iterator[Finding]:
    groups = model.config.instance_group
    line = model.field_line("instance_group")
    if any(group.gpus or group.kind == group.KIND_GPU for group in groups):
        yield model.finding(
            "gpu_instances",
            "instance groups do not place an engine: it takes the GPUs of its ranks",
            "instance_group [ { kind: KIND_CPU count: 1 } ], and parameter gpu_device_ids",
            line,
        )
    yield from device_set_rules(model)


def device_set_rules(model: ModelSource) -> Iterator[Finding]:
    """One set of GPUs for each instance, where any are named."""
    sets = [part for part in model.parameter("gpu_device_ids").split(";") if part.strip()]
    instances = sum(max(1, group.count) for group in model.config.instance_group) or 1
    if sets and "${" not in sets[0] and len(sets) != instances:
        yield model.finding(
            "device_sets",
            f"gpu_device_ids has {len(sets)} sets of GPUs, instance_group {instances} instances",
            "one set for each instance, with ; between sets and , inside",
            model.string_line("gpu_device_ids"),
        )
