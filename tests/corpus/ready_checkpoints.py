"""Checkpoints as somebody else would have quantized them, made of a plain one by rounding to nearest.

    python tests/corpus/ready_checkpoints.py compressed-tensors SOURCE DIRECTORY    # in the model environment
    python tests/corpus/ready_checkpoints.py gptq SOURCE DIRECTORY

`compressed-tensors` has INT8 weights, a scale a row, and inputs rounded to INT8 token by token (W8A8); `gptq` has INT4
weights in groups. The source is one safetensors file; its tokenizer and configuration are taken over.
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
    layers = _layers(weights)
    group = gcd(128, *(weights[f"{name}.weight"].shape[1] for name in layers))
    shifts = torch.arange(0, 32, 4).view(1, 8, 1)
    for name in layers:
        given = weights.pop(f"{name}.weight")
        weight = given.float().T.contiguous()
        columns, rows = weight.shape
        scale = weight.view(columns // group, group, rows).abs().amax(1) / 7
        numbers = (weight / scale.repeat_interleave(group, 0)).round().clamp(-8, 7).long() + 8
        packed = (numbers.view(columns // 8, 8, rows) << shifts).sum(1)
        weights[f"{name}.qweight"] = (packed - (packed >= 2**31).long() * 2**32).to(torch.int32)
        weights[f"{name}.qzeros"] = torch.full((columns // group, rows // 8), 0x77777777, dtype=torch.int32)
        weights[f"{name}.scales"] = scale.half()
        weights[f"{name}.g_idx"] = torch.arange(columns, dtype=torch.int32) // group
    return {
        "quant_method": "gptq", "bits": 4, "group_size": group, "sym": True, "desc_act": False, "lm_head": False,
    }  # fmt: skip


METHODS: Mapping[str, Callable[[Tensors], Mapping[str, Any]]] = {
    "compressed-tensors": as_compressed_tensors,
    "gptq": as_gptq,
}


def _layers(weights: Tensors) -> list[str]:
    """Names of the linear layers inside the decoder's layers; routers and heads stay as they are."""
    return [name.removesuffix(".weight") for name in weights if name.endswith("_proj.weight")]


def make_ready(method: str, source: Path, directory: Path) -> Path:
    """Quantize a plain checkpoint into a directory, which may be its own."""
    if source != directory:
        shutil.copytree(source, directory)
    weights = load_file(directory / "model.safetensors")
    told = METHODS[method](weights)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, directory / "model.safetensors",
              metadata={"format": "pt"})  # fmt: skip
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": told}, indent=2))
    return directory


if __name__ == "__main__":
    make_ready(sys.argv[1], Path(sys.argv[2]).absolute(), Path(sys.argv[3]).absolute())
