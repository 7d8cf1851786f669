"""An exported checkpoint as a Transformers model that computes what the exported numbers say.

Weights are dequantized from the packed tensors one by one, on the device, while Transformers asks for them;
`pre_quant_scale`, activation quantizers and KV cache quantizers are part of the forward pass. Nothing is quantized
a second time.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, CompressedTensorsConfig
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging as transformers_logging

from llm_pipeline.artifacts.checkpoint_files import read_quantization
from llm_pipeline.artifacts.checkpoint_loading import greedy_generation, load_causal_model, load_config, load_confined
from llm_pipeline.artifacts.quantized_checkpoint import Checkpoint
from llm_pipeline.artifacts.tensor_formats import (
    FP4_MAXIMUM,
    ActivationFormat,
    quantize_fp8,
    quantize_fp8_per_token,
    quantize_int8,
    quantize_mxfp4,
    quantize_nvfp4,
)
from llm_pipeline.base.errors import IntegrityError, Unsupported

_PROBE_TOKENS = 64
_BY_VLLM = "set evaluation.scorer: vllm, on a host that has vLLM"
_ATTENTION = "sdpa_with_quantized_kv_cache"
_Quantizer = Callable[[torch.Tensor], torch.Tensor]


class QuantizedLinear(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A linear layer with its activation quantizer.

    Attributes:
        weight: Dequantized, [out, in].
        input_quantizer: What rounds its inputs; None where nothing does.
    """

    def __init__(self, linear: nn.Linear, smoothing: torch.Tensor | None, quantize: _Quantizer | None) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.input_quantizer = quantize
        self.register_buffer(
            "pre_quant_scale", None if smoothing is None else smoothing.to(linear.weight.dtype), persistent=False
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Smooth, quantize the activations, multiply."""
        if self.pre_quant_scale is not None:
            inputs = inputs * self.pre_quant_scale
        if self.input_quantizer is not None:
            inputs = self.input_quantizer(inputs)
        return nn.functional.linear(inputs, self.weight, self.bias)


@dataclass(frozen=True)
class _PackedWeight:
    """A weight that is not read yet: `[...]` dequantizes it, as it reads a slice of a safetensors file."""

    checkpoint: Checkpoint
    name: str
    dtype: torch.dtype

    def __getitem__(self, _: object) -> torch.Tensor:
        return self.checkpoint.weight(self.name).to(self.dtype)


def load_model(source: Path, dtype: torch.dtype, device: str = "cpu", place: Mapping[str, Any] | None = None) -> Any:
    """A plain or quantized checkpoint as a Transformers causal language model, in evaluation mode.

    No code of the checkpoint is run, and only safetensors are read. Each tensor goes straight to the device; beside
    the finished model, only a few layers are ever in memory.

    Args:
        source: The checkpoint's directory.
        dtype: Precision of its arithmetic.
        device: Where it goes, and where weights are dequantized.
        place: For a model that is spread over several devices: options of `from_pretrained`.

    Raises:
        IntegrityError: Its tensors are not those of the model, or are damaged, or its files lead out of the directory.
        Unsupported: The checkpoint's format cannot be read.
    """
    transformers_logging.disable_progress_bar()
    if place is None:
        place = {} if device == "cpu" else {"device_map": {"": device}}
    quantization = read_quantization(source)
    if quantization.algorithm is None:
        return load_causal_model(source, dtype=dtype, **place)
    if quantization.foreign:
        return _load_foreign(source, str(quantization.algorithm), dtype, place)
    checkpoint = Checkpoint(source, device)
    quantizers = {name: _input_quantizer(*checkpoint.activation(name)) for name in checkpoint.layers}
    model = _model_with(source, dtype, checkpoint, place)
    for name, quantize in quantizers.items():
        smoothing = checkpoint.smoothing(name)
        if smoothing is not None or quantize is not None:
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, QuantizedLinear(model.get_submodule(name), smoothing, quantize))
    _quantize_kv_cache(model, checkpoint)
    model.generation_config = greedy_generation(source)
    return model.eval()


def _load_foreign(source: Path, algorithm: str, dtype: torch.dtype, place: Mapping[str, Any]) -> Any:
    """What another tool quantized: of that, Transformers computes compressed-tensors anywhere, inputs rounded, too."""
    if not algorithm.startswith("compressed-tensors"):
        raise Unsupported(f"scorer hf does not read {algorithm}", where=str(source), hint=_BY_VLLM)
    if find_spec("compressed_tensors") is None:
        raise Unsupported(
            f"scorer hf reads {algorithm} with the package compressed-tensors, which this interpreter does not have",
            where=str(source),
            hint=f"install it into the model environment, or {_BY_VLLM}",
        )
    unpacked = CompressedTensorsConfig(run_compressed=False)
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings(action="ignore"):  # bars, and that it obeys
        return load_causal_model(source, dtype=dtype, quantization_config=unpacked, **place)


def probe(model: Any) -> torch.Tensor:
    """What a model answers to one sequence that is always the same: logits in fp32 on the CPU, [tokens, vocabulary].

    Its tokens are from all over the vocabulary. The first ones are often special, and a model that hardly ever read
    them answers anything: SmolLM2's logits in bfloat16 differ by 29 % from those in float32 there, by 1 % here.
    """
    embedding = model.get_input_embeddings().weight
    places = 2 * torch.arange(_PROBE_TOKENS, device=embedding.device)[None] + 1
    ids = places * embedding.shape[0] // (2 * _PROBE_TOKENS)
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0].float().cpu()
    return logits


def _model_with(source: Path, dtype: torch.dtype, checkpoint: Checkpoint, place: Mapping[str, Any]) -> Any:
    config = load_config(source)
    del config.quantization_config
    weights: dict[str, Any] = {key: checkpoint.tensors.unread(key) for key in checkpoint.plain}
    weights |= {f"{name}.weight": _PackedWeight(checkpoint, name, dtype) for name in checkpoint.layers}
    with torch.device("meta"):
        architecture = type(AutoModelForCausalLM.from_config(config, trust_remote_code=False))
    options = {"config": config, "state_dict": weights, "dtype": dtype, "output_loading_info": True, **place}
    model, report = load_confined(source, lambda: architecture.from_pretrained(None, **options))
    problems = {name: sorted(map(str, keys)) for name, keys in report.items() if keys}
    if problems:
        raise IntegrityError(f"the weights do not fit the architecture: {problems}", where=str(source))
    return model


def _input_quantizer(activation: ActivationFormat | None, scale: float | None) -> _Quantizer | None:
    static = {"fp8": quantize_fp8, "int8": quantize_int8, "nvfp4": quantize_nvfp4}
    dynamic = {"fp8_per_token": quantize_fp8_per_token, "mxfp4": quantize_mxfp4}
    if activation is None:
        return None
    return dynamic[activation] if scale is None else partial(static[activation], scale=scale)


def _quantize_kv_cache(model: Any, checkpoint: Checkpoint) -> None:
    scales, kind = checkpoint.kv_scales, checkpoint.metadata.kv_cache
    if kind is None:
        return
    for name, module in model.named_modules():
        if f"{name}.k_proj.k_scale" in scales:
            module.kv_cache_quantizers = tuple(_kv_quantizer(kind, scales[f"{name}.{part}"]) for part in _KV_PARTS)
    ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _attention_with_quantized_kv_cache)
    ALL_MASK_ATTENTION_FUNCTIONS.register(_ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    model.config._attn_implementation = _ATTENTION  # noqa: SLF001 - what transformers' own models read


_KV_PARTS = ("k_proj.k_scale", "v_proj.v_scale")


def _kv_quantizer(kind: str, scale: float) -> _Quantizer:
    """What is exported is `amax / 448` for FP8 and NVFP4 alike; NVFP4's own scale is `amax / (448 * 6)`."""
    if kind == "FP8":
        return partial(quantize_fp8, scale=scale)
    if kind == "NVFP4":
        return partial(quantize_nvfp4, scale=scale / FP4_MAXIMUM)
    raise Unsupported(f"cannot read a KV cache of {kind}")


def _attention_with_quantized_kv_cache(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *arguments: Any, **options: Any
) -> Any:
    quantize_key, quantize_value = module.kv_cache_quantizers
    kept = quantize_key(key), quantize_value(value)
    return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, *kept, *arguments, **options)
