"""Whether an export's dequantized weights are the source's, as far as rounding allows.

Each weight may be half a step of its own scale away from the source's. That bound is exact for every format and every
model, and nothing else passes it: swapped nibbles, a scale along the wrong axis, another layer's weights.

Smoothing leaves the function as it was and changes the weights: a layer's columns are divided by what its input is
multiplied by, which is stored beside it (`pre_quant_scale`), or was multiplied into the norm before it, or into the
rows of the layer before it (NVFP4 AWQ: `up_proj` before `down_proj`, `v_proj` before `o_proj`). The products are
compared.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import prod

import torch

from llm_pipeline.artifacts.quantized_checkpoint import LAYER_SUFFIXES, Checkpoint, StoredTensors
from llm_pipeline.base.errors import IntegrityError

TOLERATED_FRACTION = 0.01
"""Of a layer's weights that may be further away: what search for the best smoothing saturates."""

LARGEST_ERROR = {8: 0.25, 4: 0.9}
"""Relative error of a layer (Frobenius norm, after smoothing) that no rounding to so many bits explains."""

WEIGHTS_COMPARED_ON_CPU = 300_000_000
"""Layers are drawn until they have so many weights; on a GPU, all are compared."""

_ROUNDINGS = 4
"""Multiplications in the model's own precision between the source's weight and the quantizer."""

_LAYERS_AT_ONCE = 8
"""Looked at on a GPU: while one is copied there from the page cache, others are computed."""

_BLOCK = re.compile(r"^(.*?\.\d+)\.")
_COLUMNS_AFTER_ROWS = {"up_proj": "down_proj", "v_proj": "o_proj"}
_ONE_MORE = " + 1"  # some norms multiply by one more than their weight
_FP8_NAN = 0x7F


@dataclass(frozen=True)
class WeightComparison:
    """How near an export's weights are to the source's.

    Attributes:
        layers: How many were compared.
        worst_error: The largest relative error: Frobenius norm of the difference by that of the weight, as it was
            smoothed before rounding.
    """

    layers: int
    worst_error: float


def check_scales(export: Checkpoint) -> None:
    """All scales are finite and positive, and no FP8 weight is NaN.

    Raises:
        IntegrityError: One is not.
    """
    with _threads(export.tensors) as pool:
        list(pool.map(partial(_check_layer, export), export.layers))
    for key in export.kv_scales:
        _check_scale(export.tensors[key], key)


def _threads(tensors: StoredTensors) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1 if tensors.device == "cpu" else _LAYERS_AT_ONCE)


def _check_layer(export: Checkpoint, name: str) -> None:
    for suffix in LAYER_SUFFIXES[1:]:
        if (tensor := export.tensors.get(name + suffix)) is not None:
            _check_scale(tensor, name + suffix)
    if export.format(name).storage is torch.float8_e4m3fn:
        codes = export.tensors[f"{name}.weight"].view(torch.uint8)
        if bool(((codes & _FP8_NAN) == _FP8_NAN).any()):
            raise IntegrityError("is not finite", where=f"{name}.weight")


def _check_scale(tensor: torch.Tensor, key: str) -> None:
    values = (tensor.view(torch.float8_e8m0fnu) if tensor.dtype is torch.uint8 else tensor).float()
    if not bool(torch.isfinite(values).all()):
        raise IntegrityError("is not finite", where=key)
    if not bool((values > 0).all()):
        raise IntegrityError("is not positive", where=key)


def changed_norms(source: StoredTensors, export: Checkpoint, precision: torch.dtype) -> dict[str, torch.Tensor]:
    """What smoothing multiplied norms by, fp32, by the norm's name; all other unquantized tensors are the source's.

    Raises:
        IntegrityError: A tensor changed that no smoothing changes.
    """
    smoothed = any(export.format(name).smooths for name in export.layers)
    ratios = {}
    for key in export.plain:
        before, after = source[key].to(precision), export.tensors[key]
        if torch.equal(before, after):
            continue
        if before.shape != after.shape or before.dim() != 1 or not smoothed or not bool(torch.isfinite(after).all()):
            raise IntegrityError("is not the source's, and nothing smooths it", where=key)
        if not key.endswith(".bias"):
            ratios[key] = _ratio(after.float(), before.float())
            ratios[key + _ONE_MORE] = _ratio(1 + after.float(), 1 + before.float())
    return {key: ratio for key, ratio in ratios.items() if bool(torch.isfinite(ratio).all())}


def _ratio(after: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Channel by channel; 1 where a channel is 0 before and after, which says nothing; infinite where only before."""
    return (after / before).nan_to_num(nan=1.0, posinf=torch.inf, neginf=-torch.inf)


def compare_weights(
    source: StoredTensors,
    export: Checkpoint,
    norms: Mapping[str, torch.Tensor],
    precision: torch.dtype,
    *,
    rounded_to_nearest: bool = True,
) -> WeightComparison:
    """Compare the dequantized layers with the source's.

    Args:
        source: The plain checkpoint's tensors, on the device to compare on.
        export: The quantized checkpoint, on the same device.
        norms: What `changed_norms` found.
        precision: Of the arithmetic before the quantizer.
        rounded_to_nearest: Whether each weight is rounded to its own nearest step; GPTQ rounds otherwise.

    Raises:
        IntegrityError: A layer's weights are not the source's.
    """
    unused = {key.removesuffix(_ONE_MORE) for key in norms}
    worst = 0.0
    drawn = _drawn(source, export)
    compare = partial(
        _compare_layer,
        source=source,
        export=export,
        norms=norms,
        precision=precision,
        rounded_to_nearest=rounded_to_nearest,
    )
    with _threads(source) as pool:
        for error, origins in pool.map(compare, drawn):
            worst = max(worst, error)
            unused -= origins
    if unused and len(drawn) == len(export.layers):
        raise IntegrityError("is not the source's, and no layer is scaled against it", where=min(unused))
    return WeightComparison(len(drawn), worst)


def _compare_layer(
    name: str,
    *,
    source: StoredTensors,
    export: Checkpoint,
    norms: Mapping[str, torch.Tensor],
    precision: torch.dtype,
    rounded_to_nearest: bool,
) -> tuple[float, set[str]]:
    """Its relative error, and the norms that explain how it was smoothed."""
    layer = _Layer(name, source, export, precision)
    factors = _factors(layer, source, export, norms, precision)
    beyond = {origin: layer.beyond(factor) for origin, factor in factors.items()}
    nearest = min(beyond, key=lambda origin: (beyond[origin], origin))
    # a norm that was multiplied by almost one is nearest to some layer no more than no norm is: it only has to fit
    fitting = {origin for origin, share in beyond.items() if share <= TOLERATED_FRACTION}
    error = layer.error(factors[nearest])
    if (rounded_to_nearest and nearest not in fitting) or not error <= layer.largest_error:
        raise IntegrityError(
            f"{beyond[nearest]:.1%} of its weights are further from the source's than {layer.algorithm} rounds"
            f" (relative error {error:.3g})",
            where=name,
        )
    return error, {origin.removesuffix(_ONE_MORE) for origin in (*fitting, nearest)}


def _drawn(source: StoredTensors, export: Checkpoint) -> list[str]:
    """The layers to compare; on a CPU, a random part of a large model."""
    if source.device != "cpu":
        return list(export.layers)
    chosen, weights = [], 0
    for name in random.Random(0).sample(export.layers, len(export.layers)):  # noqa: S311 - a draw, no secret
        if weights < WEIGHTS_COMPARED_ON_CPU:
            chosen.append(name)
            weights += prod(source.shape(f"{name}.weight"))
    return chosen


class _Layer:
    """One layer's dequantized weight beside the source's."""

    def __init__(self, name: str, source: StoredTensors, export: Checkpoint, precision: torch.dtype) -> None:
        layer, stored = export.format(name), export.stored(name)
        self.name, self.algorithm, self.smooths = name, layer.algorithm, layer.smooths
        self.largest_error = LARGEST_ERROR[8 if layer.packing == "none" else 4]
        self.wanted = source[f"{name}.weight"].float()
        self._weight, self._allowed = layer.dequantize(stored), layer.rounding_errors(stored)
        self._slack = _ROUNDINGS * torch.finfo(precision).eps

    def row_scale(self, columns: torch.Tensor | None) -> torch.Tensor:
        """What each row was multiplied by, by least squares; [out]."""
        weight = self._weight if columns is None else self._weight * columns
        scale = (weight * self.wanted).sum(1) / self.wanted.square().sum(1)
        return torch.where(torch.isfinite(scale) & (scale > 0), scale, 1.0)

    def beyond(self, factor: torch.Tensor | None) -> float:
        """The fraction of weights that, multiplied by the factor, are further away than rounding explains."""
        allowed = self._allowed if factor is None else self._allowed * factor.abs()
        return float((self._difference(factor).abs_() > allowed + self.wanted.abs() * self._slack).float().mean())

    def error(self, factor: torch.Tensor | None) -> float:
        """The relative error of the weights as they were rounded, which is after smoothing."""
        rounded = self.wanted if factor is None else self.wanted / factor
        return float((self._weight - rounded).norm() / rounded.norm().clamp_min(1e-30))

    def _difference(self, factor: torch.Tensor | None) -> torch.Tensor:
        return (self._weight if factor is None else self._weight * factor) - self.wanted


def _factors(
    layer: _Layer, source: StoredTensors, export: Checkpoint, norms: Mapping[str, torch.Tensor], precision: torch.dtype
) -> dict[str, torch.Tensor | None]:
    """What the weight may have to be multiplied by to give the source's, by where that is from."""
    own = export.smoothing(layer.name)
    factors = {"": own} | (_norm_factors(layer, norms) if own is None and layer.smooths else {})
    if own is not None or layer.algorithm != "NVFP4_AWQ":
        return factors
    parent, _, leaf = layer.name.rpartition(".")
    if leaf in _COLUMNS_AFTER_ROWS:
        after = f"{parent}.{_COLUMNS_AFTER_ROWS[leaf]}"
        if f"{after}.pre_quant_scale" not in export.tensors:
            factors |= {
                origin: _product(1 / layer.row_scale(columns)[:, None], columns) for origin, columns in factors.items()
            }
    if leaf in _COLUMNS_AFTER_ROWS.values():
        before = next(rows for rows, columns in _COLUMNS_AFTER_ROWS.items() if columns == leaf)
        other = _Layer(f"{parent}.{before}", source, export, precision)
        for origin, columns in ({"": None} | _norm_factors(other, norms)).items():
            scale = other.row_scale(columns)
            if scale.numel() == layer.wanted.shape[1]:
                factors[f"{other.name} {origin}"] = scale
    return factors


def _norm_factors(layer: _Layer, norms: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor | None]:
    """The changed norms of the layer's own block that are as wide as its input."""
    block, width = _BLOCK.match(layer.name), layer.wanted.shape[1]
    return {
        key: ratio
        for key, ratio in norms.items()
        if block and key.startswith(f"{block[1]}.") and ratio.numel() == width
    }


def _product(rows: torch.Tensor, columns: torch.Tensor | None) -> torch.Tensor:
    return rows if columns is None else rows * columns
