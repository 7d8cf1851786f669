"""An exported checkpoint as a Transformers model that computes what the exported numbers say.

Weights are dequantized from the packed tensors; `pre_quant_scale`, activation quantizers and KV cache
quantizers are part of the forward pass. Nothing is quantized a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging as transformers_logging

from llm_pipeline.errors import IntegrityError
from llm_pipeline.quantization.checkpoint import (
    DequantizedLayer,
    dequantize_layer,
    is_kv_scale,
    load_tensors,
    plain_tensors,
    quantize_fp8,
    quantize_int8,
    quantized_layers,
    read_quantization,
)

_ATTENTION = "sdpa_with_fp8_kv_cache"


class QuantizedLinear(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A linear layer with its activation quantizer.

    Attributes:
        weight: Dequantized, [out, in].
    """

    def __init__(self, linear: nn.Linear, layer: DequantizedLayer) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self._scale, self._activation = layer.input_scale, layer.activation
        smoothing = layer.pre_quant_scale
        self.register_buffer(
            "pre_quant_scale", None if smoothing is None else smoothing.to(linear.weight.dtype), persistent=False
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Smooth, quantize the activations, multiply."""
        kind = inputs.dtype
        if self.pre_quant_scale is not None:
            inputs = inputs * self.pre_quant_scale
        if self._scale is not None:
            quantize = quantize_int8 if self._activation == "int8" else quantize_fp8
            inputs = quantize(inputs, self._scale).to(kind)
        return nn.functional.linear(inputs, self.weight, self.bias)


def load_model(source: Path, dtype: torch.dtype, device: str = "cpu") -> Any:
    """A plain or quantized checkpoint as a Transformers causal language model, in evaluation mode.

    No code of the checkpoint is run, and only safetensors are read.

    Raises:
        IntegrityError: Tensors are missing, left over or damaged.
        Unsupported: The checkpoint's format cannot be read.
    """
    transformers_logging.disable_progress_bar()
    if read_quantization(source).algorithm is None:
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
        return model.to(device).eval()
    tensors = load_tensors(source)
    layers = {name: dequantize_layer(tensors, name) for name in quantized_layers(tensors)}
    model = _model_with(source, dtype, tensors, layers)
    for name, layer in layers.items():
        if layer.pre_quant_scale is not None or layer.input_scale is not None:
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, QuantizedLinear(model.get_submodule(name), layer))
    _quantize_kv_cache(model, {key: float(value) for key, value in tensors.items() if is_kv_scale(key)})
    return model.to(device).eval()


def _model_with(
    source: Path, dtype: torch.dtype, tensors: Mapping[str, torch.Tensor], layers: Mapping[str, DequantizedLayer]
) -> Any:
    config = AutoConfig.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    del config.quantization_config
    weights = {key: value.to(dtype) for key, value in plain_tensors(tensors).items()}
    weights |= {f"{layer.name}.weight": layer.weight.to(dtype) for layer in layers.values()}
    with torch.device("meta"):
        architecture = type(AutoModelForCausalLM.from_config(config, trust_remote_code=False))
    model, report = architecture.from_pretrained(
        None, config=config, state_dict=weights, dtype=dtype, output_loading_info=True
    )
    problems = {name: sorted(map(str, keys)) for name, keys in report.items() if keys}
    if problems:
        raise IntegrityError(f"the weights do not fit the architecture: {problems}", where=str(source))
    return model


def _quantize_kv_cache(model: Any, scales: Mapping[str, float]) -> None:
    if not scales:
        return
    for name, module in model.named_modules():
        if f"{name}.k_proj.k_scale" in scales:
            module.kv_cache_scales = (scales[f"{name}.k_proj.k_scale"], scales[f"{name}.v_proj.v_scale"])
    ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _attention_with_fp8_kv_cache)
    model.config._attn_implementation = _ATTENTION  # noqa: SLF001 - what transformers' own models read


def _attention_with_fp8_kv_cache(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *arguments: Any, **options: Any
) -> Any:
    key_scale, value_scale = module.kv_cache_scales
    kept = [quantize_fp8(tensor, scale).to(tensor.dtype) for tensor, scale in ((key, key_scale), (value, value_scale))]
    return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, *kept, *arguments, **options)
