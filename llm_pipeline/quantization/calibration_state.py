"""The state that a calibration produced, as files: safetensors and JSON, without the weights.

    state.save(directory)
    CalibrationState.load(directory).restore(model)      # a freshly loaded model, ready for export

A state of an AutoQuantize search holds the quantizers of every format, each calibrated in its own way, and the scores;
`restore` is then told which layer takes which format.

What modelopt knows about a quantizer is written as JSON (`to_json`), so that nothing is ever unpickled. JSON has no
tuples, no keys that are numbers, no shapes and no element types. Each of those becomes an object with a single key that
names it, such as `{"tuple": [4, 3]}`; anything else is refused when it is written.

The weights are not part of the state. Formats that smooth activations (SmoothQuant, AWQ) rescale the columns of
weights, at fp32 and only once; the scales are recorded while modelopt applies them (`recorded_rescaling`), and the same
multiplication on the same checkpoint gives the same bits again, on any device (`rescale`). So the state of an 8B model
takes a few megabytes; in formats of blocks, where every 128 weights have a maximum of their own, some 200.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.quantization import model_calib
from modelopt.torch.quantization.config import QuantizeConfig, QuantizerAttributeConfig
from modelopt.torch.quantization.conversion import restore_quantizer_state, set_quantizer_attributes_full
from modelopt.torch.quantization.nn import QuantModule, SequentialQuantizer, TensorQuantizer
from pydantic import JsonValue
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from llm_pipeline.base.digest import canonical_json
from llm_pipeline.base.durable import sync_file_system
from llm_pipeline.base.errors import IntegrityError, unless_io

_NOTHING_QUANTIZED = {"quant_cfg": [{"quantizer_name": "*", "enable": False}], "algorithm": None}


@dataclass(frozen=True)
class QuantizerState:
    """What the quantizers of a model know.

    Attributes:
        properties: modelopt's own description of each quantizer, by the quantizer's name; plain data.
        tensors: Scales and maxima, by `<quantizer>:<tensor>`, on the CPU.
    """

    properties: Mapping[str, Mapping[str, Any]]
    tensors: Mapping[str, torch.Tensor]


def capture(model: nn.Module) -> QuantizerState:
    """The state of all quantizers of a model."""
    properties, tensors = {}, {}
    for name, module in model.named_modules():
        if isinstance(module, TensorQuantizer | SequentialQuantizer):
            properties[name] = module.get_modelopt_state()
        if isinstance(module, TensorQuantizer):
            tensors[name] = module.state_dict()
    return as_state(properties, tensors)


def as_state(
    properties: Mapping[str, Mapping[str, Any]], tensors: Mapping[str, Mapping[str, torch.Tensor]]
) -> QuantizerState:
    """A state as modelopt gives it, by quantizer; among its properties can be tensors (maxima for smoothing), too."""
    plain: dict[str, dict[str, Any]] = {}
    flat = {f"{name}:{key}": _kept(tensor) for name, held in tensors.items() for key, tensor in held.items()}
    for name, held in properties.items():
        plain[name] = {key: value for key, value in held.items() if not isinstance(value, torch.Tensor)}
        flat |= {f"{name}:{key}": _kept(value) for key, value in held.items() if isinstance(value, torch.Tensor)}
    return QuantizerState(plain, flat)


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().clone().contiguous()


def quantized_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """The weights of all layers that are quantized, as they are now, by parameter."""
    return {
        f"{name}.weight": _kept(module.weight)
        for name, module in model.named_modules()
        if isinstance(module, QuantModule)
        and isinstance(getattr(module, "weight", None), nn.Parameter)
        and module.weight_quantizer.is_enabled
    }


def without_quantization(model: nn.Module) -> QuantizerState:
    """Give a plain model quantizers that do nothing; returns their state."""
    mtq.quantize(model, _NOTHING_QUANTIZED)
    return capture(model)


def restore(model: nn.Module, state: QuantizerState) -> None:
    """Give a model the quantizers of the one that the state was captured from.

    Args:
        model: Of the same architecture, all its weights in memory; with quantizers that do nothing, or with none.
        state: From `capture`, or put together of several.

    Raises:
        ApplyModeError: The state is of another architecture.
    """
    if not any(isinstance(module, TensorQuantizer) for module in model.modules()):
        without_quantization(model)
    for name, held in state.properties.items():
        if held.get("is_sequential_quantizer"):
            attributes = [QuantizerAttributeConfig() for _ in range(held["num_quantizers"])]
            set_quantizer_attributes_full(model, name, attributes)
    properties = {name: dict(held) for name, held in state.properties.items()}
    tensors: dict[str, dict[str, torch.Tensor]] = {name: {} for name in properties}
    for key, tensor in state.tensors.items():
        name, _, kept = key.rpartition(":")
        of_module = properties[name]["_pytorch_state_metadata"]
        is_property = kept not in of_module["buffers"] and kept not in of_module["params"]
        (properties if is_property else tensors)[name][kept] = tensor
    restore_quantizer_state(model, QuantizeConfig(), {"quantizer_state": properties})
    for name, module in model.named_modules():
        if isinstance(module, TensorQuantizer):
            module.load_state_dict(tensors[name])


@contextmanager
def recorded_rescaling(model: nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Record what modelopt multiplies into the columns of which weight.

    Yields:
        Filled when the block ends: fp32 [times, in], by the name of the layer.
    """
    scales: dict[nn.Module, list[torch.Tensor]] = {}
    apply = model_calib._apply_weight_pre_quant_scale  # noqa: SLF001 - the one place where modelopt changes weights

    def record(linear: nn.Module, scale: torch.Tensor) -> None:
        if model_calib._ENABLE_FOLDING_PQS_TO_WEIGHTS:  # noqa: SLF001 - otherwise it is kept as a quantizer's tensor
            scales.setdefault(linear, []).append(_kept(scale).flatten())
        apply(linear, scale)

    by_name: dict[str, torch.Tensor] = {}
    model_calib._apply_weight_pre_quant_scale = record  # noqa: SLF001
    try:
        yield by_name
    finally:
        model_calib._apply_weight_pre_quant_scale = apply  # noqa: SLF001
    names = {module: name for name, module in model.named_modules()}
    by_name.update({names[linear]: torch.stack(recorded) for linear, recorded in scales.items()})


def rescale(model: nn.Module, scales: Mapping[str, torch.Tensor]) -> None:
    """Change the weights of a freshly loaded model as `recorded_rescaling` saw it."""
    with torch.no_grad():
        for name, recorded in scales.items():
            weight = model.get_submodule(name).weight
            for scale in recorded.to(weight.device):
                weight.copy_((weight * scale).to(weight.dtype))


_TUPLE, _SIZE, _DTYPE, _ITEMS = "tuple", "size", "dtype", "items"
_TAGS = frozenset({_TUPLE, _SIZE, _DTYPE, _ITEMS})


def to_json(value: Any) -> JsonValue:
    """Encode plain data as JSON, for `from_json`.

    Raises:
        TypeError: It holds something that is no plain data.
    """
    match value:
        case None | bool() | int() | float() | str():
            return value
        case torch.dtype():
            return {_DTYPE: str(value).removeprefix("torch.")}
        case list() | tuple():
            items = [to_json(item) for item in value]
            return items if isinstance(value, list) else {_SIZE if isinstance(value, torch.Size) else _TUPLE: items}
        case dict():
            return _object(value)
    raise TypeError(f"not plain data: {type(value).__name__}")


def _object(value: dict[Any, Any]) -> JsonValue:
    if all(isinstance(key, str) for key in value) and not _TAGS & value.keys():
        return {key: to_json(item) for key, item in value.items()}
    return {_ITEMS: [[to_json(key), to_json(item)] for key, item in value.items()]}


def from_json(value: JsonValue) -> Any:
    """The value that `to_json` was given.

    Raises:
        ValueError: It is nothing that `to_json` writes.
    """
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and (tag := next(iter(value))) in _TAGS:
        return _READERS[tag](value[tag])
    return {key: from_json(item) for key, item in value.items()}


def _dtype(name: Any) -> torch.dtype:
    found = getattr(torch, str(name), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"not an element type: {name}")  # noqa: TRY004 - the JSON is wrong, not a type of ours
    return found


_READERS: Mapping[str, Callable[[Any], Any]] = {
    _TUPLE: lambda items: tuple(map(from_json, items)),
    _SIZE: torch.Size,
    _DTYPE: _dtype,
    _ITEMS: lambda items: {from_json(key): from_json(item) for key, item in items},
}


_FORMAT = 1
_DESCRIPTION, _TENSORS = "calibration.json", "calibration.safetensors"
_QUANTIZERS, _RESCALED, _WEIGHTS = "quantizers", "rescaled", "weights"


@dataclass(frozen=True)
class CalibrationState:
    """Everything that has to be known to make a calibrated model of a plain checkpoint again.

    Attributes:
        quantizers: State of the quantizers by format; one entry, named after the recipe's format, without a search.
        rescaled: Factors that were multiplied into the columns of weights: fp32 [times, in], by layer.
        weights: Weights that an algorithm changed in any other way, as they are now, by name; most change none.
        search: Scores of an AutoQuantize search; None without.
    """

    quantizers: Mapping[str, QuantizerState]
    rescaled: Mapping[str, torch.Tensor] = field(default_factory=dict)
    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    search: Mapping[str, JsonValue] | None = None

    def restore(self, model: nn.Module) -> None:
        """Make a freshly loaded model the calibrated one, bit for bit; for states without a search."""
        (quantizers,) = self.quantizers.values()
        with torch.no_grad():
            for name, weight in self.weights.items():
                model.get_parameter(name).copy_(weight)
        if not self.weights:
            rescale(model, self.rescaled)
        restore(model, quantizers)

    def save(self, directory: Path) -> None:
        """Write the state to a new directory; it is there only when it is whole."""
        partial = directory.with_name(f"{directory.name}.partial")
        partial.mkdir(parents=True, exist_ok=True)
        tensors = {
            f"{_QUANTIZERS}/{name}/{key}": tensor
            for name, state in self.quantizers.items()
            for key, tensor in state.tensors.items()
        }
        tensors |= {f"{_RESCALED}/{name}": tensor for name, tensor in self.rescaled.items()}
        tensors |= {f"{_WEIGHTS}/{name}": tensor for name, tensor in self.weights.items()}
        save_file(tensors, partial / _TENSORS)
        description: dict[str, Any] = {
            "format": _FORMAT,
            "quantizers": {name: to_json(dict(state.properties)) for name, state in self.quantizers.items()},
            "search": None if self.search is None else dict(self.search),
        }
        (partial / _DESCRIPTION).write_bytes(canonical_json(description))
        sync_file_system(partial)
        partial.rename(directory)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read the state that `save` wrote.

        Raises:
            IntegrityError: It is damaged, or written by another version of this package.
        """
        try:
            description = json.loads((directory / _DESCRIPTION).read_bytes())
            if description["format"] != _FORMAT:
                raise IntegrityError(
                    f"the calibration has format {description['format']}, and this version reads {_FORMAT}",
                    where=str(directory),
                )
            tensors = load_file(directory / _TENSORS)
            return cls(
                quantizers={
                    name: QuantizerState(from_json(properties), _below(tensors, f"{_QUANTIZERS}/{name}/"))
                    for name, properties in description["quantizers"].items()
                },
                rescaled=_below(tensors, f"{_RESCALED}/"),
                weights=_below(tensors, f"{_WEIGHTS}/"),
                search=description["search"],
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
            raise unless_io(
                error, IntegrityError(f"unreadable calibration: {error!r}", where=str(directory))
            ) from error


def _below(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
