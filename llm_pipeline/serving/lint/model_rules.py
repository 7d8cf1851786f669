"""Rules of every model, mostly those that the server checks when it loads it (triton core, model_config_utils.cc)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from llm_pipeline.serving.lint.finding import Finding, Severity
from llm_pipeline.serving.lint.repository import ModelSource, Repository

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelInput, ModelOutput

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


def model_rules(model: ModelSource, _: Repository) -> Iterator[Finding]:
    """Name, backend and tensors."""
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
    line = model.string_line(tensor.name) if tensor.name else model.field_line(kind)
    label = f"{kind} {tensor.name}" if tensor.name else f"an {kind}"
    if not tensor.name:
        yield model.finding("tensor_name", f"{label} has no name", 'name: "..."', line)
    if_missing: Severity = "warning" if model.is_completed_by_server else "error"
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
    """What only images, and only TensorRT's own plans, may say."""
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
