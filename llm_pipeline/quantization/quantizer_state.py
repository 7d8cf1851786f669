"""The quantizers of a modelopt model, taken out of it and put into another one: everything that calibration found out.

The weights are not part of it. Formats that smooth activations (SmoothQuant, AWQ) rescale the columns of weights, at
fp32 and only once; the scales are recorded while modelopt applies them (`recorded_rescaling`), and the same
multiplication on the same checkpoint gives the same bits again, on any device (`rescale`). So the state of an 8B model
takes a few megabytes; in formats of blocks, where every 128 weights have a maximum of their own, some 200.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.quantization import model_calib
from modelopt.torch.quantization.config import QuantizeConfig, QuantizerAttributeConfig
from modelopt.torch.quantization.conversion import restore_quantizer_state, set_quantizer_attributes_full
from modelopt.torch.quantization.nn import QuantModule, SequentialQuantizer, TensorQuantizer
from torch import nn

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
