"""Which layers of an export are quantized, how, and in how many bytes: against the recipe and the format's arithmetic.

Everything is read from the headers of the files and from what the export says about itself; no weight is loaded.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path
from typing import Any

import torch

from llm_pipeline.artifacts.checkpoint_loading import empty_model
from llm_pipeline.artifacts.quantized_checkpoint import LAYER_SUFFIXES, Checkpoint, StoredTensors, is_kv_scale
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.catalog.modelopt_recipes import ALGORITHMS, FUSED_PROJECTIONS
from llm_pipeline.catalog.output_head import with_head_kept
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.quantization.modelopt_configs import modelopt_config

SIZE_TOLERANCE = 0.001
BITS_TOLERANCE = 0.005
_UNQUANTIZED_BITS = 16.0

_MODELOPT_ALGORITHMS: Mapping[str, frozenset[str]] = {
    "fp8": frozenset({"FP8"}),
    "fp8_pc_pt": frozenset({"FP8_PER_CHANNEL_PER_TOKEN"}),
    "fp8_pb_wo": frozenset({"fp8_pb_wo"}),
    "int8_sq": frozenset({"W8A8_SQ_PER_CHANNEL"}),
    "int8_wo": frozenset({"W8A16"}),
    "int4_awq": frozenset({"W4A16_AWQ"}),
    "w4a8_awq": frozenset({"W4A8_AWQ"}),
    "nvfp4": frozenset({"NVFP4", "NVFP4_AWQ"}),
    "w4a16_nvfp4": frozenset({"W4A16_NVFP4"}),
    "mxfp4": frozenset({"mxfp4"}),
    "w4a8_mxfp4_fp8": frozenset({"W4A8_MXFP4_FP8"}),
}
"""From modelopt's name of a configured layer's format to those of its exports: before calibration, AWQ looks plain."""

_CACHED = {"k_proj": "k_scale", "v_proj": "v_scale"}

Shape = tuple[int, int]


@dataclass(frozen=True)
class Intention:
    """What a recipe makes of a model.

    Attributes:
        layers: Shape [out, in] of every linear layer.
        algorithms: Algorithms that each layer may have been quantized by; layers that stay as they are are not there.
        optional: Whether a layer may also stay as it is: a search decides.
        kv_cache: modelopt's name of the KV cache format; None for the model's own precision.
    """

    layers: Mapping[str, Shape]
    algorithms: Mapping[str, frozenset[str]]
    optional: bool
    kv_cache: str | None


def intention(source: Path, recipe: QuantizationRecipe, solved: Mapping[str, str | None] | None = None) -> Intention:
    """What the recipe should make of the checkpoint in `source`, from its architecture alone.

    Args:
        source: The plain checkpoint.
        recipe: What was asked for.
        solved: The choice of a search: modelopt's algorithm for each layer, None for unquantized; where it is not
            given, any format of the search is right for any layer.
    """
    model = empty_model(source)
    recipe, layers = with_head_kept(recipe, model), _linear_layers(model)
    allowed = [name for name in layers if not any(fnmatchcase(name, pattern) for pattern in recipe.exclude)]
    kv_cache = None if recipe.kv_cache == "none" else recipe.kv_cache.upper()
    if recipe.search is not None:
        choices = frozenset(ALGORITHMS[choice] for choice in recipe.search.formats)
        algorithms = dict.fromkeys(allowed, choices)
        if solved is not None:
            algorithms = {name: frozenset({algorithm}) for name, algorithm in solved.items() if algorithm}
        return Intention(layers, algorithms, solved is None, kv_cache)
    configured, configured_kv = _configured(source, recipe)
    if recipe.weights == "modelopt":
        algorithms = {name: _MODELOPT_ALGORITHMS.get(kind, frozenset({kind})) for name, kind in configured.items()}
        return Intention(layers, algorithms, optional=False, kv_cache=configured_kv)
    algorithms = dict.fromkeys(filter(configured.__contains__, allowed), frozenset({ALGORITHMS[recipe.weights]}))
    return Intention(layers, algorithms, optional=False, kv_cache=kv_cache)


def _linear_layers(model: Any) -> dict[str, Shape]:
    linear = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    return {name: (module.out_features, module.in_features) for name, module in linear.items()}


def _configured(source: Path, recipe: QuantizationRecipe) -> tuple[dict[str, str], str | None]:
    """Format of each layer, and of the KV cache, as modelopt itself understands its configuration."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export.quant_utils import get_kv_cache_dtype, get_quantization_format

    model = empty_model(source)
    with contextlib.redirect_stdout(io.StringIO()):
        mtq.quantize(model, {**modelopt_config(recipe), "algorithm": None})
    formats = {name: get_quantization_format(model.get_submodule(name)) for name in _linear_layers(model)}
    return {name: kind for name, kind in formats.items() if kind is not None}, get_kv_cache_dtype(list(model.modules()))


def check_coverage(intended: Intention, export: Checkpoint, where: str) -> None:
    """Every intended layer is quantized in the intended format, and none other; so is the KV cache.

    Raises:
        IntegrityError: A layer or the KV cache is not what the recipe says.
    """
    found = {name: export.metadata.scheme(name).algorithm for name in export.layers}
    missing = sorted(set(intended.algorithms) - set(found))
    if missing and not intended.optional:
        raise IntegrityError(f"{len(missing)} layers are not quantized: {missing[:5]}", where=where)
    if surplus := sorted(set(found) - set(intended.algorithms)):
        raise IntegrityError(
            f"{len(surplus)} layers are quantized that the recipe leaves out: {surplus[:5]}", where=where
        )
    for name, algorithm in found.items():
        if algorithm not in intended.algorithms[name]:
            wanted = " or ".join(sorted(intended.algorithms[name]))
            raise IntegrityError(f"{name} is quantized as {algorithm}, not as {wanted}", where=where)
    if export.metadata.kv_cache != intended.kv_cache:
        raise IntegrityError(
            f"the KV cache format is {export.metadata.kv_cache}, the recipe says {intended.kv_cache}", where=where
        )
    keys, values = ({key[:-8] for key in export.kv_scales if key.endswith(end)} for end in (".k_scale", ".v_scale"))
    projections = sum(name.rpartition(".")[2] in ("k_proj", *FUSED_PROJECTIONS) for name in intended.layers)
    if intended.kv_cache and not len(keys) == len(values) == projections:
        raise IntegrityError(f"the KV cache has {len(keys)} + {len(values)} scales of 2 x {projections}", where=where)
    if intended.kv_cache is None and keys | values:
        raise IntegrityError("the KV cache has scales that the recipe does not ask for", where=where)


def check_storage(layers: Mapping[str, Shape], export: Checkpoint) -> None:
    """Each quantized layer has the tensors of its format, in its types and shapes: what it is labelled is what it is.

    `layers` has the shape [out, in] of every quantized layer; only headers of the export are read.

    Raises:
        IntegrityError: A tensor is missing, is left over, or has another type or shape.
        Unsupported: A format is unknown.
    """
    for name in export.layers:
        rows, columns = layers[name]
        layer, scheme = export.format(name), export.metadata.scheme(name)
        weight, scale = f"{name}.weight", f"{name}.weight_scale"
        stored = export.tensors.kind(weight), export.tensors.shape(weight)
        if stored != (layer.storage, layer.stored_shape(rows, columns)):
            raise IntegrityError(
                f"{stored[0]} {list(stored[1])} is not {layer.algorithm}, as it is labelled", where=weight
            )
        scales = export.tensors.kind(scale), prod(export.tensors.shape(scale))
        if scales != (layer.scale, layer.scales(rows, columns, scheme.group_size)):
            raise IntegrityError(f"{scales[1]} scales of {scales[0]} are not those of {layer.algorithm}", where=scale)
        has = {suffix for suffix in LAYER_SUFFIXES if name + suffix in export.tensors}
        needs = {".weight", ".weight_scale"}
        needs |= {".weight_scale_2"} if layer.second_scale else set()
        needs |= {".input_scale"} if layer.static_activation else set()
        if wrong := has.symmetric_difference(needs) - ({".pre_quant_scale"} if layer.smooths else set()):
            raise IntegrityError(f"missing or surplus tensors for {layer.algorithm}: {sorted(wrong)}", where=name)
        counts = {".weight_scale_2": 1, ".input_scale": 1, ".pre_quant_scale": columns}
        for suffix in sorted(has & counts.keys()):
            shape = export.tensors.shape(name + suffix)
            if prod(shape) != counts[suffix]:
                raise IntegrityError(f"{list(shape)} is not the shape of {counts[suffix]} scales", where=name + suffix)


@dataclass(frozen=True)
class ExportSize:
    """How many bytes the tensors of an export and of its source take.

    Attributes:
        bytes: Of the export.
        expected: What the formats' arithmetic says.
        baseline: Of the source.
        effective_bits: Mean bits of a linear layer's weight, counted as AutoQuantize counts them.
    """

    bytes: int
    expected: int
    baseline: int
    effective_bits: float


def check_size(intended: Intention, source: StoredTensors, export: Checkpoint, precision: torch.dtype) -> ExportSize:
    """An export whose tensors are the model's takes exactly the bytes that its formats need.

    Raises:
        IntegrityError: A tensor is not the source's, or they take more or fewer bytes.
    """
    plain = set(export.plain)
    if surplus := sorted(plain - set(source)):
        raise IntegrityError(f"{len(surplus)} tensors are not the source's: {surplus[:5]}")
    expected = sum(prod(source.shape(key)) * precision.itemsize for key in plain) + 4 * len(export.kv_scales)
    weights = bits = 0.0
    for name, (rows, columns) in intended.layers.items():
        weights += rows * columns
        if name not in export.layers:
            bits += _UNQUANTIZED_BITS * rows * columns
            continue
        layer = export.format(name)
        bits += layer.effective_bits * rows * columns
        expected += layer.bytes(rows, columns, export.metadata.scheme(name).group_size)
        if f"{name}.pre_quant_scale" in export.tensors:
            expected += columns * precision.itemsize
    size = ExportSize(_bytes(export.tensors), expected, _bytes(source), bits / weights)
    if abs(size.bytes - expected) > SIZE_TOLERANCE * expected:
        raise IntegrityError(f"{size.bytes} bytes of tensors, the formats should need {expected}")
    return size


def _bytes(tensors: StoredTensors) -> int:
    return sum(prod(tensors.shape(key)) * tensors.kind(key).itemsize for key in tensors)


def packed_matrices(directory: Path, model: Any) -> tuple[dict[str, Shape], frozenset[str]]:
    """The matrices that a quantized checkpoint holds in packed form: shape [out, in] by the plain tensor's name.

    Returns:
        The matrices, and the names of all tensors that are no plain ones: packed weights and scales.

    Raises:
        IntegrityError: A quantized layer lacks a tensor of its format or has another one, in another type or shape;
            or scales of the KV cache are missing or have no place.
        Unsupported: A format is unknown.
    """
    checkpoint = Checkpoint(directory)
    layers = {name: _matrix(checkpoint, name) for name in checkpoint.layers}
    check_storage(layers, checkpoint)
    _check_kv_scales(checkpoint, model, str(directory))
    matrices = {f"{name}.weight": shape for name, shape in layers.items()}
    return matrices, frozenset(checkpoint.tensors) - frozenset(checkpoint.plain)


def _matrix(checkpoint: Checkpoint, name: str) -> tuple[int, int]:
    weight = f"{name}.weight"
    if weight not in checkpoint.tensors:
        raise IntegrityError("there are scales, but no weight", where=name)
    stored = checkpoint.tensors.shape(weight)
    if len(stored) != 2:  # noqa: PLR2004 - a matrix
        raise IntegrityError(f"a packed weight of shape {list(stored)} is no matrix", where=weight)
    return checkpoint.format(name).matrix_shape(stored[0], stored[1])


def _check_kv_scales(checkpoint: Checkpoint, model: Any, where: str) -> None:
    names = [name.rpartition(".") for name, _ in model.named_modules()]
    projections = [f"{parent}.{leaf}" for parent, _, leaf in names if leaf in _CACHED]
    projections += [f"{parent}.{leaf}" for parent, _, fused in names if fused in FUSED_PROJECTIONS for leaf in _CACHED]
    wanted = {f"{name}.{_CACHED[name.rpartition('.')[2]]}" for name in projections if checkpoint.metadata.kv_cache}
    found = {key for key in checkpoint.tensors if is_kv_scale(key)}
    if missing := sorted(wanted - found):
        raise IntegrityError(f"{len(missing)} scales of the KV cache are missing: {missing[:5]}", where=where)
    if surplus := sorted(found - wanted):
        raise IntegrityError(f"{len(surplus)} scales of the KV cache have no place: {surplus[:5]}", where=where)
    if wrong := sorted(key for key in found if set(checkpoint.tensors.shape(key)) - {1}):
        raise IntegrityError(f"{len(wrong)} scales of the KV cache are not single numbers: {wrong[:5]}", where=where)
