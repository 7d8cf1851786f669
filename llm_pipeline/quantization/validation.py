"""Checks of an exported checkpoint against the checkpoint and the recipe it was made from.

An export that loads is not yet right: layers may have been skipped or exported in another format, scales may
be broken, the tokenizer may be missing. Everything is read from the files, nothing from the quantizer's memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from llm_pipeline.config.quantization import STATIC_ACTIVATIONS, WEIGHT_BITS, QuantizationRecipe
from llm_pipeline.digest import sha256_file
from llm_pipeline.errors import IntegrityError
from llm_pipeline.quantization.checkpoint import (
    TOKENIZER_FILES,
    is_kv_scale,
    load_tensors,
    plain_tensors,
    quantized_layers,
    read_quantization,
)
from llm_pipeline.quantization.modelopt_configs import is_excluded, modelopt_config

SIZE_TOLERANCE = 0.02
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
_SCALES = (".weight_scale", ".weight_scale_2", ".input_scale", ".pre_quant_scale", ".k_scale", ".v_scale")
_STORED_BITS = {torch.float8_e4m3fn: 8, torch.int8: 8, torch.uint8: 4}


@dataclass(frozen=True)
class ExportFacts:
    """A sound export.

    Attributes:
        bytes: Tensor bytes of the export.
        baseline_bytes: Tensor bytes of the source.
        size_ratio: The first by the second.
        expected_ratio: What the format's arithmetic says.
        layers: Quantized layers.
    """

    bytes: int
    baseline_bytes: int
    size_ratio: float
    expected_ratio: float
    layers: tuple[str, ...]


def validate_export(source: Path, export: Path, recipe: QuantizationRecipe) -> ExportFacts:
    """Check layer coverage, formats, scales, size and companions of an export.

    Raises:
        IntegrityError: One of them is wrong; the message says which and where.
    """
    before, after = load_tensors(source), load_tensors(export)
    layers = intended_layers(source, recipe)
    _check_coverage(layers, quantized_layers(after), export)
    _check_formats(layers, after, recipe, export)
    _check_numbers(after, export)
    _check_kv_cache(after, recipe, export)
    _check_companions(source, export)
    baseline, size = _bytes(before), _bytes(after)
    expected = _expected_bytes(before, after, layers, recipe)
    if abs(size - expected) > SIZE_TOLERANCE * expected:
        raise IntegrityError(f"{size} bytes of tensors, {recipe.weights} should need {expected:.0f}", where=str(export))
    return ExportFacts(size, baseline, size / baseline, expected / baseline, tuple(layers))


def intended_layers(source: Path, recipe: QuantizationRecipe) -> list[str]:
    """Names of the linear layers that the recipe quantizes, from the architecture alone."""
    config = AutoConfig.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    quantizer_config = modelopt_config(recipe)
    return sorted(name for name in linear if not is_excluded(quantizer_config, name))


def _check_coverage(intended: Sequence[str], found: Sequence[str], export: Path) -> None:
    if missing := sorted(set(intended) - set(found)):
        raise IntegrityError(f"{len(missing)} layers are not quantized: {missing[:5]}", where=str(export))
    if surplus := sorted(set(found) - set(intended)):
        raise IntegrityError(f"{len(surplus)} layers are quantized unasked: {surplus[:5]}", where=str(export))


def _check_formats(
    layers: Sequence[str], tensors: Mapping[str, torch.Tensor], recipe: QuantizationRecipe, export: Path
) -> None:
    for name in layers:
        stored = tensors[f"{name}.weight"].dtype
        if _STORED_BITS.get(stored) != WEIGHT_BITS[recipe.weights] or (stored is torch.int8) != _is_int8(recipe):
            raise IntegrityError(f"{name} is stored as {stored}, not as {recipe.weights}", where=str(export))
        if recipe.weights in STATIC_ACTIVATIONS and f"{name}.input_scale" not in tensors:
            raise IntegrityError(f"{name} has no activation scale", where=str(export))


def _is_int8(recipe: QuantizationRecipe) -> bool:
    return recipe.weights.startswith("int8")


def _check_numbers(tensors: Mapping[str, torch.Tensor], export: Path) -> None:
    for key, tensor in tensors.items():
        if not tensor.is_floating_point():
            continue
        values = tensor.float()
        if not torch.isfinite(values).all():
            raise IntegrityError(f"{key} is not finite", where=str(export))
        if key.endswith(_SCALES) and not (values > 0).all():
            raise IntegrityError(f"{key} is not positive", where=str(export))


def _check_kv_cache(tensors: Mapping[str, torch.Tensor], recipe: QuantizationRecipe, export: Path) -> None:
    found, wanted = read_quantization(export).kv_cache, None if recipe.kv_cache == "none" else recipe.kv_cache.upper()
    if found != wanted:
        raise IntegrityError(f"the KV cache format is {found}, the recipe says {wanted}", where=str(export))
    if wanted and not any(map(is_kv_scale, tensors)):
        raise IntegrityError("the KV cache has no scales", where=str(export))


def _check_companions(source: Path, export: Path) -> None:
    if not any((export / name).is_file() for name in _TOKENIZERS):
        raise IntegrityError("there is no tokenizer", where=str(export))
    for name in TOKENIZER_FILES:
        if not (source / name).is_file():
            continue
        if not (export / name).is_file():
            raise IntegrityError(f"{name} is missing", where=str(export))
        if sha256_file(source / name) != sha256_file(export / name):
            raise IntegrityError(f"{name} is not the source's", where=str(export))


def _bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _expected_bytes(
    before: Mapping[str, torch.Tensor],
    after: Mapping[str, torch.Tensor],
    layers: Sequence[str],
    recipe: QuantizationRecipe,
) -> float:
    """Unquantized tensors at the export's precision, weights at the format's bits, and one scale a group or row."""
    bits = WEIGHT_BITS[recipe.weights] or 0
    weights = {f"{name}.weight" for name in layers}
    width = next((tensor.element_size() for tensor in plain_tensors(after).values() if tensor.is_floating_point()), 2)
    plain = sum(tensor.numel() * width for key, tensor in before.items() if key not in weights)
    packed = sum(before[key].numel() * bits / 8 for key in weights)
    scales = _bytes({key: tensor for key, tensor in after.items() if key.endswith(_SCALES)})
    return float(plain + packed + min(scales, _most_scale_bytes(before, weights)))


def _most_scale_bytes(before: Mapping[str, torch.Tensor], weights: set[str]) -> int:
    """The most that scales may take: fp32, one a row, one a column, one for each group of 16, and eight alone."""
    shapes = [tuple(before[key].shape) for key in weights]
    return sum(4 * (rows + columns + rows * columns // 16 + 8) for rows, columns in shapes)
