"""What the packed tensors of a quantized checkpoint stand for, from headers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_pipeline.artifacts.quantized_checkpoint import Checkpoint, is_kv_scale
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.catalog.exported_names import FUSED_PROJECTIONS
from llm_pipeline.quantization.export_structure import Shape, check_storage

_CACHED = {"k_proj": "k_scale", "v_proj": "v_scale"}


def packed_matrices(directory: Path, model: Any) -> tuple[dict[str, Shape], frozenset[str]]:
    """The matrices that a quantized checkpoint holds in packed form: shape [out, in] by the plain tensor's name.

    Args:
        directory: The quantized checkpoint.
        model: Its model.

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
