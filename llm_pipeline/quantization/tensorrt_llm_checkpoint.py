"""The TensorRT-LLM checkpoint: what the engine builder of TensorRT-LLM 1.0 to 1.2.x reads, a file for each rank.

modelopt writes it from the calibrated model; what it may hold (`data/tensorrt_llm_checkpoint.json`) is from the
checkpoint's documentation and from modelopt's exporter of the release that those versions of TensorRT-LLM pin.

Checks read headers alone, without torch. All layers are alike: what one of them has, all have, on every rank, in the
same type and shape.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_pipeline.artifacts.checkpoint_files import read_json
from llm_pipeline.artifacts.safetensors_header import TensorEntry, read_header
from llm_pipeline.base.errors import IntegrityError, Unsupported
from llm_pipeline.config.quantization import CheckpointRanks, KvCacheFormat, QuantizationRecipe, WeightFormat

if TYPE_CHECKING:
    import torch

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


_CONFIG = "config.json"
_OUTSIDE_LAYERS = {"transformer.vocab_embedding.weight": 0, "transformer.ln_f.weight": -1}
"""Tensors by the group of the pipeline that holds them: the first one embeds, the last one ends."""

_HINT = "remove tensorrt_llm_checkpoint: the Hugging Face checkpoint serves all later versions"


@cache
def _facts() -> dict[str, Any]:
    text = files("llm_pipeline.quantization").joinpath("data/tensorrt_llm_checkpoint.json").read_text(encoding="utf-8")
    facts: dict[str, Any] = json.loads(text)
    return facts


def refuse_unsupported_tensorrt_llm_checkpoint(recipe: QuantizationRecipe) -> None:
    """Refuse, before any work, a TensorRT-LLM checkpoint of a format that it cannot hold.

    Raises:
        Unsupported: It is such a format, or such a KV cache.
    """
    if not recipe.tensorrt_llm_checkpoint:
        return
    where = f"recipe {recipe.name}"
    if recipe.weights not in _facts()["algorithms"]:
        known = ", ".join(_facts()["algorithms"])
        message = f"a TensorRT-LLM checkpoint cannot be exported with weights: {recipe.weights} (only {known})"
        raise Unsupported(message, where=where, hint=_HINT)
    if recipe.kv_cache not in ("none", *_facts()["kv_caches"]):
        message = f"a TensorRT-LLM checkpoint cannot be exported with kv_cache: {recipe.kv_cache}"
        raise Unsupported(message, where=where, hint=_HINT)


def tensorrt_llm_names(weights: WeightFormat, kv_cache: KvCacheFormat) -> tuple[str | None, str | None]:
    """TensorRT-LLM's names of formats in such a checkpoint; None for what it cannot hold, or what is not quantized."""
    return _facts()["algorithms"].get(weights), _facts()["kv_caches"].get(kv_cache)


def export_tensorrt_llm(model: Any, dtype: torch.dtype, directory: Path, ranks: CheckpointRanks) -> None:
    """Write the checkpoint of a calibrated model, which is of no use afterwards.

    Raises:
        Unsupported: The model's architecture has none.
    """
    from modelopt.torch.export import export_tensorrt_llm_checkpoint
    from modelopt.torch.export.model_utils import get_model_type

    decoder = get_model_type(model)
    if decoder not in _facts()["decoders"]:
        name = type(model).__name__
        raise Unsupported(f"{name} cannot be exported as a TensorRT-LLM checkpoint", where="recipe", hint=_HINT)
    export_tensorrt_llm_checkpoint(
        model,
        decoder,
        dtype,
        directory,
        inference_tensor_parallel=ranks.tensor,
        inference_pipeline_parallel=ranks.pipeline,
    )


def check_tensorrt_llm_checkpoint(directory: Path, recipe: QuantizationRecipe, dtype: str) -> int:
    """Check a checkpoint against the recipe; returns the bytes of its weights.

    Raises:
        IntegrityError: A file or field is missing, or says something else than the recipe.
    """
    path = directory / _CONFIG
    config = read_json(path)
    missing = [name for name in _facts()["required"] if name not in config]
    quantization, mapping = config.get("quantization") or {}, config.get("mapping") or {}
    if missing:
        raise IntegrityError(f"the TensorRT-LLM checkpoint lacks {', '.join(missing)}", where=str(path))
    algorithm, kv_algorithm = tensorrt_llm_names(recipe.weights, recipe.kv_cache)
    ranks = recipe.tensorrt_llm_ranks
    wanted = {
        "dtype": (config["dtype"], dtype),
        "quant_algo": (quantization.get("quant_algo"), algorithm),
        "kv_cache_quant_algo": (quantization.get("kv_cache_quant_algo"), kv_algorithm),
        "world_size": (mapping.get("world_size"), ranks.world_size),
        "tp_size": (mapping.get("tp_size"), ranks.tensor),
        "pp_size": (mapping.get("pp_size"), ranks.pipeline),
    }
    for name, (found, expected) in wanted.items():
        if found != expected:
            raise IntegrityError(f"{name} is {found}, it should be {expected}", where=str(path))
    _check_groups(config, quantization.get("group_size"), path)
    files = _rank_files(directory, ranks)
    held = [read_header(path) for path in files]
    _check_weights(files, held, ranks, int(config["num_hidden_layers"]))
    if problems := [*tensor_problems(config, held)]:
        raise IntegrityError("; ".join(problems), where=str(directory), hint="quantize again: nothing was published")
    return sum(path.stat().st_size for path in files)


def _check_groups(config: dict[str, Any], group: int | None, path: Path) -> None:
    widths = {name: config.get(name) for name in ("hidden_size", "intermediate_size")}
    for name, width in widths.items():
        if group and width and width % group:
            raise IntegrityError(f"{name} {width} is not a multiple of the group size {group}", where=str(path))


def _rank_files(directory: Path, ranks: CheckpointRanks) -> list[Path]:
    """The file of each rank, and no other."""
    files = [directory / f"rank{rank}.safetensors" for rank in range(ranks.world_size)]
    if missing := [path.name for path in files if not path.is_file()]:
        raise IntegrityError(f"unreadable weights: there is no {', '.join(missing)}", where=str(directory))
    if surplus := sorted({path.name for path in directory.glob("rank*")} - {path.name for path in files}):
        raise IntegrityError(f"{', '.join(surplus)}: there are {ranks.world_size} ranks", where=str(directory))
    return files


def _check_weights(
    files: Sequence[Path], held: Sequence[tuple[TensorEntry, ...]], ranks: CheckpointRanks, layers: int
) -> None:
    """Every rank has its layers, counted from 0 in each group of the pipeline."""
    shapes = [{tensor.name: tensor.shape for tensor in tensors} for tensors in held]
    for rank, path in enumerate(files):
        group = rank // ranks.tensor
        _check_layers(set(shapes[rank]), layers // ranks.pipeline, path)
        for name, holder in _OUTSIDE_LAYERS.items():
            if (name in shapes[rank]) != (group == holder % ranks.pipeline):
                raise IntegrityError(f"{name} is missing, or not where it belongs", where=str(path))
        if shapes[rank] != shapes[group * ranks.tensor]:
            raise IntegrityError("the ranks of one group are not of one shape", where=str(path))


def _check_layers(names: set[str], layers: int, path: Path) -> None:
    for layer in range(layers):
        if not any(name.startswith(f"transformer.layers.{layer}.") for name in names):
            raise IntegrityError(f"layer {layer} has no weights", where=str(path))
    if any(name.startswith(f"transformer.layers.{layers}.") for name in names):
        raise IntegrityError(f"there are more than {layers} layers", where=str(path))
