"""Whether a TensorRT-LLM checkpoint has all tensors of its layers, from headers alone. Without torch.

Its layers are alike: what one of them has, all have, on every rank, in the same type and shape.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llm_pipeline.artifacts.safetensors_header import TensorEntry

_LAYER = re.compile(r"transformer\.layers\.(\d+)\.(.+)")
_EVERY_LAYER = ("attention.qkv.weight", "attention.dense.weight", "mlp.fc.weight", "mlp.proj.weight",
                "input_layernorm.weight")  # fmt: skip
_OUTSIDE = ("transformer.vocab_embedding.weight", "transformer.ln_f.weight")
_SECOND_NORM = frozenset({"llama", "qwen", "gemma", "gemma2", "phi3", "gpt"})
"""modelopt's names of the decoders whose attention and MLP are not side by side, and so have a norm each."""
_GATED = frozenset({"silu", "swiglu"})
_PLAIN = frozenset({"F32", "F16", "BF16"})
_LISTED = 5

_Kind = tuple[str, tuple[int, ...]]


def tensor_problems(config: Mapping[str, Any], ranks: Sequence[tuple[TensorEntry, ...]]) -> Iterator[str]:
    """What is wrong with the tensors of a checkpoint, each problem with the first tensors that it concerns."""
    layers = {(rank, number): layer for rank, held in enumerate(ranks) for number, layer in _layers(held).items()}
    if not layers:
        yield "there are no layers"
        return
    first = layers[min(layers)]
    mixed = (config.get("quantization") or {}).get("quant_algo") == "MIXED_PRECISION"
    yield from _required_problems(config, first)
    outside = {tensor.name for held in ranks for tensor in held}
    wanted = _OUTSIDE if config.get("share_embedding_table") else (*_OUTSIDE, "lm_head.weight")
    if missing := [name for name in wanted if name not in outside]:
        yield f"no rank has {', '.join(missing)}"
    if not mixed:
        yield from _differences(layers, first)


def _differences(layers: Mapping[tuple[int, int], Mapping[str, _Kind]], first: Mapping[str, _Kind]) -> Iterator[str]:
    for (rank, number), layer in layers.items():
        where = f"layer {number} of rank {rank}"
        lacking, surplus = sorted(first.keys() - layer.keys()), sorted(layer.keys() - first.keys())
        if lacking or surplus:
            yield f"{where} is not like the first: it lacks {lacking[:_LISTED]} and has {surplus[:_LISTED]} besides"
        elif differing := sorted(name for name in first if layer[name] != first[name]):
            name = differing[0]
            yield f"{where}: {name} is {_text(layer[name])}, the first layer's is {_text(first[name])}"


def _layers(tensors: tuple[TensorEntry, ...]) -> dict[int, dict[str, _Kind]]:
    layers: dict[int, dict[str, _Kind]] = defaultdict(dict)
    for tensor in tensors:
        if match := _LAYER.fullmatch(tensor.name):
            layers[int(match[1])][match[2]] = tensor.dtype, tensor.shape
    return layers


def _required_problems(config: Mapping[str, Any], layer: Mapping[str, _Kind]) -> Iterator[str]:
    required = [*_EVERY_LAYER]
    required += ["post_layernorm.weight"] if config.get("decoder") in _SECOND_NORM else []
    required += ["mlp.gate.weight"] if config.get("hidden_act") in _GATED else []
    if missing := [name for name in required if name not in layer]:
        yield f"the layers have no {', '.join(missing)}"
    for name, (dtype, shape) in layer.items():
        scaled = name.removesuffix(".weight") + ".weights_scaling_factor"
        if name.endswith("layernorm.weight") and (dtype not in _PLAIN or shape != (config["hidden_size"],)):
            yield f"{name} is {_text((dtype, shape))}, not one float for each of {config['hidden_size']} channels"
        elif name.endswith(".weight") and (dtype in _PLAIN) == (scaled in layer):
            yield f"{name} is {dtype}, with{'' if scaled in layer else 'out'} scales"


def _text(kind: _Kind) -> str:
    return f"{kind[0]} {list(kind[1])}"
