"""The check of an exported checkpoint before it is published.

An export that loads is not yet right: layers may have been skipped or exported in another format, scales may be broken,
weights may be packed wrongly. So it is read back from its files, as scoring will read it, and has to be what the recipe
says, hold finite numbers only, and answer as the model did that it was exported from. Both answer with inputs as they
are, and the scales of inputs are compared instead: the last of its 16 bits moves a rounded input to the next step, so
that sound exports of SmolLM2 in FP8 would differ by 7 % for 1 %, and some of random weights by 15 %. Quantized experts
are not read back: Transformers holds all experts of a layer in one tensor. Their numbers are checked, and a scorer that
reads the export as it is judges the answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from llm_pipeline.artifacts.checkpoint_files import QUANTIZATION_FILE, read_json
from llm_pipeline.artifacts.model_rules import TOKENIZER
from llm_pipeline.artifacts.quantized_checkpoint import Checkpoint
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.catalog.output_head import is_named
from llm_pipeline.config.quantization import WEIGHT_FORMATS, QuantizationRecipe
from llm_pipeline.quantization.device_memory import placement_here, release_cached
from llm_pipeline.quantization.readback import QuantizedLinear, load_model, probe

LARGEST_DIFFERENCE = 0.15
"""Of the logits, by their norm; rounding explains less: random weights in INT4 AWQ show 0.08."""

_SCALES_APART = 0.01
_AGAIN = "quantize again; if it happens again, report it with the recipe and the model"


@dataclass(frozen=True)
class ModelInMemory:
    """What an export is compared with.

    Attributes:
        logits: What the model answers to `probe` while no layer quantizes its inputs.
        input_scales: The static scale of a layer's inputs, by the layer's name.
    """

    logits: torch.Tensor
    input_scales: Mapping[str, float]


@dataclass(frozen=True)
class ExportFacts:
    """What was seen of an export that is sound.

    Attributes:
        layers: Quantized layers.
        difference: Between its logits and those of the model that it was exported from, by their norm; None where it
            was not read back.
    """

    layers: int
    difference: float | None


def check_export(
    source: Path, export: Path, recipe: QuantizationRecipe, expected: ModelInMemory, *, dtype: torch.dtype, device: str
) -> ExportFacts:
    """Load an export and check what it says of itself, its numbers and its answers.

    Args:
        source: The plain checkpoint that it was made from.
        export: The quantized checkpoint.
        recipe: What was asked for.
        expected: What the model in memory has and answered.
        dtype: Precision of the arithmetic.
        device: `cpu`, or `cuda` for all visible GPUs.

    Raises:
        IntegrityError: It is not what the recipe says, or not the model.
        Unsupported: It has a format that this package cannot read.
        OutOfMemory: The model does not fit.
    """
    where = str(export)
    if not (export / TOKENIZER).is_file():
        raise IntegrityError("there is no tokenizer", where=where)
    checkpoint = Checkpoint(export)
    _check_formats(checkpoint, recipe, export)
    release_cached()
    if any(".experts." in name for name in checkpoint.layers):
        stored = Checkpoint(export, device)
        for name in (*stored.layers, *stored.plain):
            numbers = stored.weight(name) if name in stored.layers else stored.tensors[name]
            if numbers.is_floating_point() and not bool(torch.isfinite(numbers).all()):
                raise IntegrityError(f"{name} is not finite", where=where)
        return ExportFacts(len(checkpoint.layers), None)
    # Each tensor has the type and shape of its format, or this raises.
    model = load_model(export, dtype, device, placement_here(source, dtype, device))
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise IntegrityError(f"{name} is not finite", where=where)
    for name in checkpoint.layers:
        scale, wanted = checkpoint.activation(name)[1], expected.input_scales.get(name)
        if scale != wanted and not (scale and wanted and abs(scale / wanted - 1) <= _SCALES_APART):
            problem = f"the inputs of {name} have the scale {scale}, and had {wanted} in the model it was made from"
            raise IntegrityError(problem, where=where, hint=_AGAIN)
    for layer in model.modules():
        if isinstance(layer, QuantizedLinear):
            layer.input_quantizer = None
    difference = float((probe(model) - expected.logits).norm() / expected.logits.norm())
    if not difference <= LARGEST_DIFFERENCE:  # also where it is no number
        raise IntegrityError(
            f"read back, the export answers otherwise than the model that it was made from: its logits differ by "
            f"{difference:.1%}, and no more than {LARGEST_DIFFERENCE:.0%} are explained by rounding",
            where=where,
            hint=_AGAIN,
        )
    return ExportFacts(len(checkpoint.layers), difference)


def _check_formats(checkpoint: Checkpoint, recipe: QuantizationRecipe, export: Path) -> None:
    """What the export says of itself is what the recipe asks for, and what its tensors are."""
    metadata, where = checkpoint.metadata, str(export)
    inline = read_json(export / "config.json").get("quantization_config") or {}
    if inline.get("quant_algo") != metadata.algorithm:
        problem = f"{QUANTIZATION_FILE} says {metadata.algorithm}, config.json {inline.get('quant_algo')}"
        raise IntegrityError(problem, where=where)
    if not checkpoint.layers:
        raise IntegrityError("no layer is quantized", where=where)
    found = {metadata.algorithm_of(name) for name in checkpoint.layers}
    allowed = {WEIGHT_FORMATS[kind].algorithm for kind in recipe.formats}
    if not found <= allowed:
        raise IntegrityError(f"layers are {', '.join(found)}, not {', '.join(allowed)}", where=where)
    wanted = None if recipe.kv_cache == "none" else recipe.kv_cache.upper()
    if metadata.kv_cache != wanted:
        raise IntegrityError(f"the KV cache is {metadata.kv_cache}, the recipe says {wanted}", where=where)
    for name in checkpoint.layers:
        if is_named(name, (*recipe.exclude, *metadata.excluded)):
            raise IntegrityError(f"{name} is quantized, and excluded", where=where)
