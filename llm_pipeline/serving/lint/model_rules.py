"""Rules of every model, mostly those that the server checks when it loads it (triton core, model_config_utils.cc)."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from llm_pipeline.artifacts.repository_layout import MODEL_FILE
from llm_pipeline.base.directory_listing import refuse_unreadable
from llm_pipeline.serving.lint.parsing import enum_name
from llm_pipeline.serving.lint.repository import Finding, ModelSource, Repository, Severity, is_version

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import BatchInput, BatchOutput, ModelInput, ModelInstanceGroup, ModelOutput

_PLATFORMS = {
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
    "tensorrt_plan": "tensorrt",
}
"""Platforms that the server knows, and their backends."""

_GUESSED_FROM = ("model.py", "model.onnx", "model.plan", "model.pt", "model.xml")
"""Files that the server guesses a backend from."""

_WILDCARD = -1
_MOST_GPUS = 16
"""Of one host; more are possible, and unheard of."""

_TYPES = ("TYPE_INT32", "TYPE_FP32")


def model_rules(model: ModelSource, _: Repository) -> Iterator[Finding]:
    """Rules of a model's name, backend and tensors."""
    if not model.is_readable:
        return
    config = model.config
    if config.name and config.name != model.name:
        yield model.finding(
            "name_differs",
            f"the configuration is named {config.name!r}, its directory {model.name!r}: the server refuses it",
            f'name: "{model.name}", or rename the directory',
            model.line(r"^name\s*:") or model.field_line("name"),
        )
    yield from _backend(model)
    if config.max_batch_size < 0:
        yield model.finding(
            "negative_batch", "max_batch_size is negative", "0 for no batches", model.field_line("max_batch_size")
        )
    for kind, tensors in (("input", config.input), ("output", config.output)):
        names = [tensor.name for tensor in tensors]
        for name in sorted({name for name in names if names.count(name) > 1}):
            message = f"{kind} {name} is declared twice, and the server does not say which is used"
            yield model.finding("tensor_twice", message, "keep one", model.string_line(name), "warning")
        for tensor in tensors:
            yield from _tensor(model, kind, tensor)


def _backend(model: ModelSource) -> Iterator[Finding]:
    config = model.config
    line = model.field_line("platform") or model.field_line("name")
    if config.backend and config.platform == "ensemble":
        yield model.finding("backend_of_ensemble", "an ensemble has no backend", "take backend out", line)
    if config.backend == "tensorflow" or config.platform.startswith("tensorflow"):
        yield model.finding(
            "removed_backend",
            "Triton's releases have no TensorFlow backend any more",
            "export the model to ONNX, or pin an older container",
            line,
            "warning",
        )
    if config.backend or model.is_ensemble or config.platform in _PLATFORMS:
        return
    if config.platform:
        yield model.finding(
            "platform_for_backend",
            f"there is no platform {config.platform!r}; that is the name of a backend",
            f'backend: "{config.platform}"',
            line,
        )
    else:
        yield _missing_backend(model, line)


def _missing_backend(model: ModelSource, line: int | None) -> Finding:
    found = [name for version in model.versions for name in _GUESSED_FROM if (version / name).is_file()]
    if found:
        message = f"neither backend nor platform is set: the server guesses from {found[0]}"
        return model.finding("missing_backend", message, 'backend: "..."', line, "warning")
    return model.finding("missing_backend", "neither backend nor platform is set", 'backend: "..."', line)


def _tensor(model: ModelSource, kind: str, tensor: ModelInput | ModelOutput) -> Iterator[Finding]:
    from tritonclient.grpc import model_config_pb2 as messages

    line = model.string_line(tensor.name) if tensor.name else model.field_line(kind)
    label = f"{kind} {tensor.name}" if tensor.name else f"an {kind}"
    if not tensor.name:
        yield model.finding("tensor_name", f"{label} has no name", 'name: "..."', line)
    if_missing: Severity = "warning" if model.is_completed_by_server else "error"
    if (data_type := enum_name(messages.DataType, tensor.data_type)).isdecimal():
        yield model.finding("data_type", f"{label} has data type {data_type}, which there is not", "TYPE_...", line)
    if not tensor.data_type:
        yield model.finding("data_type", f"{label} has no data type", "data_type: TYPE_...", line, if_missing)
    if not tensor.dims:
        yield model.finding("tensor_dims", f"{label} has no dims", "dims: [ ... ], without the batch", line, if_missing)
    if any(dim < 1 and dim != _WILDCARD for dim in tensor.dims):
        yield model.finding(
            "tensor_dims",
            f"{label} has dims {list(tensor.dims)}: each must be 1 or more, or -1 for any",
            "dims: [ 1 ] for one value, [ -1 ] for any number; the batch is not among them",
            line,
        )
    if tensor.HasField("reshape"):
        yield from _reshape(model, label, tensor, line)
    yield from _format(model, label, tensor, line)


def _format(model: ModelSource, label: str, tensor: ModelInput | ModelOutput, line: int | None) -> Iterator[Finding]:
    """Fields that only images, and only TensorRT plans, may set."""
    is_plan = "tensorrt" in (model.config.backend, model.config.platform.removesuffix("_plan"))
    if getattr(tensor, "format", 0) and len(tensor.dims) != len(("channels", "height", "width")):
        message = f"{label} has an image's format and {len(tensor.dims)} dims"
        yield model.finding("tensor_format", message, "three dims, or take format out", line)
    for field in ("is_shape_tensor", "is_non_linear_format_io"):
        if getattr(tensor, field) and not is_plan:
            yield model.finding("tensor_format", f"{label} sets {field}, which TensorRT plans only have",
                                f"take {field} out", line)  # fmt: skip


def _reshape(model: ModelSource, label: str, tensor: ModelInput | ModelOutput, line: int | None) -> Iterator[Finding]:
    shape = list(tensor.reshape.shape)
    if not shape and not model.config.max_batch_size:
        yield model.finding(
            "tensor_reshape",
            f"{label} is reshaped to nothing in a model without batches",
            "take reshape out, or set max_batch_size",
            line,
        )
    elif any(dim < 1 and dim != _WILDCARD for dim in shape):
        message = f"{label} is reshaped to {shape}: each must be 1 or more, or -1 for any"
        yield model.finding("tensor_reshape", message, "reshape: { shape: [ 1 ] } for one value", line)
    elif _sizes_around_wildcards(shape) != _sizes_around_wildcards(tensor.dims):
        message = f"{label} is reshaped from {list(tensor.dims)} to {shape}, which holds another number of values"
        yield model.finding("tensor_reshape", message, "give both the same numbers before, between and after -1", line)


def _sizes_around_wildcards(dims: Iterable[int]) -> list[int]:
    """The server's measure: [2, 4, -1, 6] holds [8, 6], as [8, -1, 1, 6] does."""
    sizes = [1]
    for dim in dims:
        if dim == _WILDCARD:
            sizes.append(1)
        else:
            sizes[-1] *= dim
    return sizes


def instance_rules(model: ModelSource, _: Repository) -> Iterator[Finding]:
    """GPUs and profiles of instance groups (triton core, `ValidateInstanceGroup`), as far as they need no host."""
    if model.is_ensemble:
        return
    for group in model.config.instance_group:
        yield from _gpus(model, group)
        if group.profile and model.config.platform != "tensorrt_plan" and model.config.backend != "tensorrt":
            message = "profile is for TensorRT models only"
            yield model.finding("instance_profile", message, "take profile out", model.field_line("profile"))


def _gpus(model: ModelSource, group: ModelInstanceGroup) -> Iterator[Finding]:
    line, gpus = model.field_line("gpus") or model.field_line("instance_group"), list(group.gpus)
    if gpus and group.kind in (group.KIND_CPU, group.KIND_MODEL):
        kind = enum_name(type(group).Kind, group.kind)
        message = f"a group of {kind} names GPUs {gpus}"
        yield model.finding("instance_gpus", message, "take gpus out, or kind: KIND_GPU", line)
    if negative := [gpu for gpu in gpus if gpu < 0]:
        yield model.finding("instance_gpus", f"there is no GPU {negative[0]}", "GPUs count from 0", line)
    elif above := [gpu for gpu in gpus if gpu >= _MOST_GPUS]:
        message = f"GPU {above[0]} needs a host of {above[0] + 1} GPUs: on any other the server refuses it"
        yield model.finding("instance_gpus", message, "GPUs count from 0", line, "warning")


def batch_io_rules(model: ModelSource, _: Repository) -> Iterator[Finding]:
    """Sources, targets and types of `batch_input` and `batch_output` (triton core, `ValidateBatchIO`)."""
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

    name = enum_name(messages.DataType, batch.data_type)
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


def file_rules(model: ModelSource, _: Repository) -> Iterator[Finding]:
    """Rules of version directories, missing code and symbolic links."""
    yield from _versions(model)
    for path in sorted(_links(model.directory)):
        yield model.finding(
            "symbolic_link",
            "a link: copies and digests of the repository do not hold what it points to",
            "put the file itself here, or name its path in a parameter",
            severity="warning",
            file=str(path.relative_to(model.directory)),
        )


def _versions(model: ModelSource) -> Iterator[Finding]:
    versions = model.versions
    others = [entry.name for entry in model.directory.iterdir() if entry.is_dir() and not is_version(entry.name)]
    if not versions:
        tried = f" (not one: {', '.join(sorted(others))})" if others else ""
        reason = "an ensemble needs one too, although it is empty" if model.is_ensemble else "the server finds nothing"
        fix = f"make {model.name}/1" + ("; git keeps no empty directory: put a .gitkeep in it" * model.is_ensemble)
        yield model.finding("no_version", f"there is no version directory{tried}: {reason}", fix, file="")
    asked = [str(version) for version in model.config.version_policy.specific.versions]
    if missing := [version for version in asked if version not in {path.name for path in versions}]:
        yield model.finding(
            "missing_version",
            f"version_policy asks for versions {', '.join(missing)}, which have no directory",
            "add them, or take them out of the policy",
            model.field_line("version_policy"),
        )
    if model.config.backend == "python" and not model.config.default_model_filename:
        for version in versions:
            if not (version / MODEL_FILE).is_file():
                message = "a python model without its code"
                yield model.finding("missing_file", message, "add the file", file=f"{version.name}/{MODEL_FILE}")


def _links(directory: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(directory, onerror=refuse_unreadable):
        yield from (path for name in (*folders, *files) if (path := Path(folder, name)).is_symlink())
