"""The TensorRT-LLM checkpoint: what the engine builder of TensorRT-LLM 1.0 to 1.2.x reads, a file for each rank.

modelopt writes it from the calibrated model; what it may hold (`data/tensorrt_llm_checkpoint.json`) is from the
checkpoint's documentation and from modelopt's exporter of the release that those versions of TensorRT-LLM pin.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_pipeline.artifacts.checkpoint_files import read_json
from llm_pipeline.artifacts.safetensors_header import read_header
from llm_pipeline.base.errors import IntegrityError, Unsupported
from llm_pipeline.config.quantization import CheckpointRanks, QuantizationRecipe

if TYPE_CHECKING:
    import torch

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
    facts, where = _facts(), f"recipe {recipe.name}"
    if recipe.weights not in (known := facts["algorithms"]):
        message = (
            f"a TensorRT-LLM checkpoint cannot be exported with weights: {recipe.weights} (only {', '.join(known)})"
        )
        raise Unsupported(message, where=where, hint=_HINT)
    if recipe.kv_cache not in ("none", *facts["kv_caches"]):
        message = f"a TensorRT-LLM checkpoint cannot be exported with kv_cache: {recipe.kv_cache}"
        raise Unsupported(message, where=where, hint=_HINT)


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
    path = directory / "config.json"
    config = read_json(path)
    if missing := [name for name in _facts()["required"] if name not in config]:
        raise IntegrityError(f"the TensorRT-LLM checkpoint lacks {', '.join(missing)}", where=str(path))
    quantization, mapping = config.get("quantization") or {}, config.get("mapping") or {}
    ranks = recipe.tensorrt_llm_ranks
    wanted = {
        "dtype": (config["dtype"], dtype),
        "quant_algo": (quantization.get("quant_algo"), _facts()["algorithms"].get(recipe.weights)),
        "kv_cache_quant_algo": (quantization.get("kv_cache_quant_algo"), _facts()["kv_caches"].get(recipe.kv_cache)),
        "world_size": (mapping.get("world_size"), ranks.world_size),
        "tp_size": (mapping.get("tp_size"), ranks.tensor),
        "pp_size": (mapping.get("pp_size"), ranks.pipeline),
    }
    for name, (found, expected) in wanted.items():
        if found != expected:
            raise IntegrityError(f"{name} is {found}, it should be {expected}", where=str(path))
    weights = [directory / f"rank{rank}.safetensors" for rank in range(ranks.world_size)]
    for file in weights:
        read_header(file)  # a missing or cut file raises
    return sum(file.stat().st_size for file in weights)
