"""Checkpoints as somebody else would have quantized them, made of a plain one by rounding to nearest.

    python tests/corpus/ready_checkpoints.py compressed-tensors SOURCE DIRECTORY    # in the model environment
    python tests/corpus/ready_checkpoints.py gptq SOURCE DIRECTORY

`compressed-tensors` has INT8 weights, a scale a row, and inputs rounded to INT8 token by token (W8A8); `gptq` and `awq`
have INT4 weights in groups. Tokenizer and configuration are taken over.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from math import gcd
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
"""Which of eight outputs stands at each place of an int32, from the lowest bits on."""


def as_compressed_tensors(weights: Tensors) -> Mapping[str, Any]:
    """Round in place; returns what config.json says of it."""
    for name in _layers(weights):
        weight = weights[f"{name}.weight"]
        scale = weight.float().abs().amax(1, keepdim=True) / 127
        weights[f"{name}.weight_scale"] = scale.to(weight.dtype)
        weights[f"{name}.weight"] = (weight.float() / scale).round().to(torch.int8)
    eight = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "format": "int-quantized",
        "weights": {**eight, "strategy": "channel", "dynamic": False},
        "input_activations": {**eight, "strategy": "token", "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors", "format": "int-quantized", "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": ["lm_head"], "kv_cache_scheme": None,
    }  # fmt: skip


def as_gptq(weights: Tensors) -> Mapping[str, Any]:
    """Round in place, eight rows to an int32; returns what config.json says of it."""
    group = _group(weights)
    for name in _layers(weights):
        numbers, scale = _rounded(weights.pop(f"{name}.weight"), group)
        columns, rows = numbers.shape
        weights[f"{name}.qweight"] = _packed(numbers.view(columns // 8, 8, rows), 1)
        weights[f"{name}.qzeros"] = torch.full((columns // group, rows // 8), 0x77777777, dtype=torch.int32)
        weights[f"{name}.scales"] = scale
        weights[f"{name}.g_idx"] = torch.arange(columns, dtype=torch.int32) // group
    return {
        "quant_method": "gptq", "bits": 4, "group_size": group, "sym": True, "desc_act": False, "lm_head": False,
    }  # fmt: skip


def as_awq(weights: Tensors) -> Mapping[str, Any]:
    """Round in place, eight outputs to an int32 in AWQ's order; returns what config.json says of it."""
    group = _group(weights)
    for name in _layers(weights):
        numbers, scale = _rounded(weights.pop(f"{name}.weight"), group)
        columns, rows = numbers.shape
        weights[f"{name}.qweight"] = _packed(numbers.view(columns, rows // 8, 8)[..., AWQ_ORDER], 2)
        weights[f"{name}.qzeros"] = torch.full((columns // group, rows // 8), 0x88888888 - 2**32, dtype=torch.int32)
        weights[f"{name}.scales"] = scale
    return {
        "quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm",
        "modules_to_not_convert": ["lm_head"],
    }  # fmt: skip


METHODS: Mapping[str, Callable[[Tensors], Mapping[str, Any]]] = {
    "compressed-tensors": as_compressed_tensors,
    "gptq": as_gptq,
    "awq": as_awq,
}


def _group(weights: Tensors) -> int:
    """Inputs that share a scale: 128, or what divides the inputs of each layer."""
    return gcd(128, *(weights[f"{name}.weight"].shape[1] for name in _layers(weights)))


def _rounded(given: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers from 0 to 15 of a layer, [inputs, outputs], where 8 is zero; and their scales, [groups, outputs]."""
    weight = given.float().T.contiguous()
    columns, rows = weight.shape
    scale = weight.view(columns // group, group, rows).abs().amax(1) / 7
    return (weight / scale.repeat_interleave(group, 0)).round().clamp(-8, 7).int() + 8, scale.half()


def _packed(numbers: torch.Tensor, dimension: int) -> torch.Tensor:
    """Eight numbers along a dimension as one int32, the first in the lowest bits."""
    packed = torch.zeros_like(numbers.select(dimension, 0))
    for place in range(8):
        packed |= numbers.select(dimension, place) << (4 * place)
    return packed


def _layers(weights: Tensors) -> list[str]:
    """Names of the linear layers inside the decoder's layers; routers and heads stay as they are."""
    return [name.removesuffix(".weight") for name in weights if name.endswith("_proj.weight")]


def make_ready(method: str, source: Path, directory: Path) -> Path:
    """Quantize a plain checkpoint, shard by shard, into a directory, which may be its own."""
    if source != directory:
        shutil.copytree(source, directory)
    shards: dict[str, str] = {}
    for path in sorted(directory.glob("*.safetensors")):
        weights = load_file(path)
        told = METHODS[method](weights)
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, path, metadata={"format": "pt"})
        shards |= dict.fromkeys(weights, path.name)
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        index.write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": told}, indent=2))
    return directory


if __name__ == "__main__":
    make_ready(sys.argv[1], Path(sys.argv[2]).absolute(), Path(sys.argv[3]).absolute())
