"""Rules of the model `tensorrt_llm`, of its engine (TensorRT-LLM 1.0 to 1.2), and of the models that call it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.json_document import parse
from llm_pipeline.serving.lint.known_mistakes import TENSORS
from llm_pipeline.serving.lint.parsing import enum_name
from llm_pipeline.serving.lint.repository import Finding, ModelSource, Repository
from llm_pipeline.serving.lint.template_rules import is_engine_model
from llm_pipeline.serving.triton_config.recorded import RecordedTensor, legal_types, recorded_model

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelInput, ModelOutput

_CONFIG = "config.json"
_BLS = "tensorrt_llm_bls"
_BLS_PARAMETER = "tensorrt_llm_model_name"
_BLS_DEFAULT = "tensorrt_llm"
"""What NVIDIA's code calls where the parameter is empty or still a placeholder."""


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
    data_type, legal = enum_name(messages.DataType, found.data_type), legal_types(recorded.data_type)
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


def engine_file_rules(model: ModelSource) -> Iterator[Finding]:
    """The engine's files, where they are on this host, and its limits against the configuration's."""
    named = model.parameter("gpt_model_path")
    if named.endswith((".engine", ".plan")):
        yield model.finding(
            "engine_directory",
            f"gpt_model_path is the file {Path(named).name}",
            f"the directory with {_CONFIG} and rank*.engine",
            model.string_line("gpt_model_path"),
        )
    for version in model.versions:
        yield from _lone_files(model, version)
    for directory in _engine_directories(model, named):
        yield from _engine(model, directory)


def _engine_directories(model: ModelSource, named: str) -> list[Path]:
    """Those of the model's versions, and the named one if it is here: a server may run in its repository."""
    found = [version for version in model.versions if any(version.glob("rank*.engine"))]
    path = model.directory.parent / named
    if named and path.is_dir() and path.resolve() not in [version.resolve() for version in found]:
        found.append(path)
    return found


def _lone_files(model: ModelSource, version: Path) -> Iterator[Finding]:
    lone = [path for path in sorted(version.iterdir()) if path.suffix in (".engine", ".plan")]
    for path in lone:
        if not path.name.startswith("rank"):
            yield model.finding(
                "engine_directory",
                "TensorRT-LLM reads no single engine file",
                f"the directory that trtllm-build wrote, with {_CONFIG} and rank0.engine, named by gpt_model_path",
                file=f"{version.name}/{path.name}",
            )


def _engine(model: ModelSource, directory: Path) -> Iterator[Finding]:
    place = _place(model, directory)
    try:
        config = parse((directory / _CONFIG).read_bytes(), where=_CONFIG, finite=False)
        ranks = int((config["pretrained_config"].get("mapping") or {}).get("world_size", 1))
        build = config["build_config"]
        built = {name: int(build[name]) for name in ("max_batch_size", "max_beam_width") if build.get(name) is not None}
    except FileNotFoundError:
        message = f"engine files without {_CONFIG}"
        yield model.finding("engine_directory", message, "copy the whole directory that trtllm-build wrote", file=place)
        return
    except (IntegrityError, KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        message = f"{_CONFIG} is not the engine's: {type(error).__name__} {error}"
        yield model.finding("engine_directory", message, "build the engine again", file=place)
        return
    missing = next((rank for rank in range(ranks) if not (directory / f"rank{rank}.engine").is_file()), None)
    if missing is not None:
        message = f"the engine has {ranks} ranks; rank{missing}.engine is missing"
        yield model.finding("engine_directory", message, "copy all ranks", file=place)
    yield from _limits(model, built)
    yield from _device_counts(model, ranks)


def _limits(model: ModelSource, built: dict[str, int]) -> Iterator[Finding]:
    batch = built.get("max_batch_size")
    if batch is not None and model.config.max_batch_size > batch:
        yield model.finding(
            "engine_batch",
            f"max_batch_size {model.config.max_batch_size} is above the engine's own, {batch}",
            f"max_batch_size: {batch}, or build with --max_batch_size {model.config.max_batch_size}",
            model.field_line("max_batch_size"),
        )
    beams, built_beams = model.parameter("max_beam_width"), built.get("max_beam_width")
    if built_beams is not None and beams.isdecimal() and int(beams) > built_beams:
        yield model.finding(
            "engine_beams",
            f"max_beam_width {beams} is above the engine's own, {built_beams}",
            f"{built_beams}, or build with --max_beam_width {beams}",
            model.string_line("max_beam_width"),
        )


def _device_counts(model: ModelSource, ranks: int) -> Iterator[Finding]:
    for devices in filter(None, model.parameter("gpu_device_ids").split(";")):
        if len(devices.split(",")) != ranks:
            yield model.finding(
                "device_sets",
                f"gpu_device_ids has the set {devices}; an instance of this engine takes {ranks} GPUs",
                f"{ranks} GPUs in each set",
                model.string_line("gpu_device_ids"),
            )


def _place(model: ModelSource, directory: Path) -> str:
    inside = directory.is_relative_to(model.directory)
    return str(directory.relative_to(model.directory)) if inside else str(directory)


def set_rules(model: ModelSource, repository: Repository) -> Iterator[Finding]:
    """The model that calls an engine's model by its name, as NVIDIA's BLS model does."""
    if model.name != _BLS and _BLS_PARAMETER not in model.config.parameters:
        return
    named = model.parameter(_BLS_PARAMETER)
    name = _BLS_DEFAULT if not named or named.startswith("${") else named
    called = repository.models.get(name)
    if called is None:
        yield model.finding(
            "unknown_model",
            f"it calls {name}, which the repository does not have",
            f"add it, or name another in {_BLS_PARAMETER}",
            model.string_line(_BLS_PARAMETER),
        )
    elif is_engine_model(called):
        yield from _same_policy(model, called)


def _same_policy(model: ModelSource, called: ModelSource) -> Iterator[Finding]:
    own, engine = (each.config.model_transaction_policy.decoupled for each in (model, called))
    if own and not engine:
        yield model.finding(
            "decoupled_differs",
            f"it is decoupled, {called.name} is not: streamed requests are refused there",
            f"decoupled: true in {called.name} too",
            model.field_line("model_transaction_policy"),
        )
    if engine and not own:
        yield model.finding(
            "decoupled_differs",
            f"{called.name} is decoupled, it is not: nobody can stream through it",
            "model_transaction_policy { decoupled: true }",
            model.field_line("model_transaction_policy"),
            "warning",
        )
