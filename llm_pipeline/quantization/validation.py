"""Checks of an exported checkpoint against the checkpoint and the recipe it was made from.

An export that loads is not yet right: layers may have been skipped or exported in another format, scales may
be broken, weights may be packed wrongly, the tokenizer may be missing. Everything is read from the files, nothing
from the quantizer's memory. The cheap checks come first; each failure names the layer or file and what is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from llm_pipeline.artifacts.checkpoint_files import COMPANIONS, QUANTIZATION_FILE, TOKENIZERS, read_json
from llm_pipeline.artifacts.checkpoint_loading import load_config
from llm_pipeline.artifacts.quantized_checkpoint import Checkpoint, StoredTensors
from llm_pipeline.base.digest import sha256_file
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.catalog.modelopt_recipes import MIXED
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.quantization.export_structure import (
    BITS_TOLERANCE,
    check_coverage,
    check_size,
    check_storage,
    intention,
)
from llm_pipeline.quantization.export_weights import changed_norms, check_scales, compare_weights
from llm_pipeline.quantization.model_tensors import require_model_tensors

_CHANGED_BY_EXPORT = frozenset({"quantization_config", "dtype", "torch_dtype", "transformers_version", "_name_or_path"})


@dataclass(frozen=True)
class ExportFacts:
    """What was measured of an export that passed all checks.

    Attributes:
        bytes: Tensor bytes of the export.
        size_ratio: These by the source's.
        expected_ratio: What the formats' arithmetic says.
        layers: Quantized layers.
        formats: How many of them each algorithm has.
        effective_bits: Mean bits of a linear layer's weight, without scales; unquantized layers count 16.
        compared_layers: Layers whose weights were compared with the source's.
        worst_error: The largest relative error among them.
    """

    bytes: int
    size_ratio: float
    expected_ratio: float
    layers: tuple[str, ...]
    formats: Mapping[str, int]
    effective_bits: float
    compared_layers: int
    worst_error: float


def validate_export(
    source: Path,
    export: Path,
    recipe: QuantizationRecipe,
    *,
    device: str = "cpu",
    solved: Mapping[str, str | None] | None = None,
) -> ExportFacts:
    """Check companions, metadata, layer coverage, storage, tensors, size, scales and weights of an export.

    Args:
        source: The plain checkpoint's directory.
        export: The quantized checkpoint's directory.
        recipe: What was asked for; a rung of a search has one number of effective bits.
        device: Where weights are compared; tensors are streamed through it one by one.
        solved: Of a search: modelopt's algorithm for each layer, None for unquantized.

    Raises:
        IntegrityError: One of them is wrong; the message says which and where.
        Unsupported: The export has a format that this package cannot read.
    """
    _check_companions(source, export)
    before, after = StoredTensors(source, device), Checkpoint(export, device)
    _check_metadata(source, export, after)
    intended = intention(source, recipe, solved)
    check_coverage(intended, after, str(export))
    check_storage(intended.layers, after)
    require_model_tensors(export)
    precision = getattr(torch, str(read_json(export / "config.json").get("dtype", "bfloat16")))
    size = check_size(intended, before, after, precision)
    if recipe.search is not None and size.effective_bits > max(recipe.search.effective_bits) + BITS_TOLERANCE:
        target = recipe.search.effective_bits[-1]
        raise IntegrityError(f"{size.effective_bits:.3f} effective bits, the recipe says {target:g}", where=str(export))
    check_scales(after)
    nearest = recipe.weights != "modelopt"
    norms = changed_norms(before, after, precision)
    weights = compare_weights(before, after, norms, precision, rounded_to_nearest=nearest)
    return ExportFacts(
        bytes=size.bytes,
        size_ratio=size.bytes / size.baseline,
        expected_ratio=size.expected / size.baseline,
        layers=after.layers,
        formats=Counter(after.metadata.scheme(name).algorithm for name in after.layers),
        effective_bits=size.effective_bits,
        compared_layers=weights.layers,
        worst_error=weights.worst_error,
    )


def _check_companions(source: Path, export: Path) -> None:
    if not any((export / name).is_file() for name in TOKENIZERS):
        raise IntegrityError("there is no tokenizer", where=str(export))
    for name in COMPANIONS:
        if not (source / name).is_file():
            if (export / name).is_file() and name != "generation_config.json":
                raise IntegrityError(f"{name} is not the source's: it has none", where=str(export))
            continue
        if not (export / name).is_file():
            raise IntegrityError(f"{name} is missing", where=str(export))
        if sha256_file(source / name) != sha256_file(export / name):
            raise IntegrityError(f"{name} is not the source's", where=str(export))


def _check_metadata(source: Path, export: Path, checkpoint: Checkpoint) -> None:
    """Compare the export's two descriptions with each other and with its layers, and its config with the source's.

    An engine reads `hf_quant_config.json`, or `quantization_config` in config.json, or both; where they differ, or
    differ from the tensors, it computes something else without an error.

    Raises:
        IntegrityError: They contradict each other.
    """
    stated, inline = _stated(export), read_json(export / "config.json").get("quantization_config")
    if not isinstance(inline, Mapping):
        raise IntegrityError("config.json has no quantization_config", where=str(export))
    _check_same(stated, inline, str(export))
    _check_groups(checkpoint, inline, str(export))
    _check_exclusions(checkpoint, str(export))
    _check_model_config(source, export)


def _stated(export: Path) -> Mapping[str, Any]:
    stated = read_json(export / QUANTIZATION_FILE).get("quantization")
    if not isinstance(stated, Mapping) or stated.get("quant_algo") is None:
        raise IntegrityError(f"{QUANTIZATION_FILE} names no algorithm", where=str(export))
    return stated


def _check_same(stated: Mapping[str, Any], inline: Mapping[str, Any], where: str) -> None:
    pairs = {
        "quant_algo": (stated.get("quant_algo"), inline.get("quant_algo")),
        "excluded modules": (stated.get("exclude_modules") or [], inline.get("ignore") or []),
        "quantized_layers": (stated.get("quantized_layers") or {}, inline.get("quantized_layers") or {}),
        "KV cache": (stated.get("kv_cache_quant_algo"), _kv_cache(inline.get("kv_cache_scheme"))),
    }
    for name, (there, here) in pairs.items():
        if there != here:
            raise IntegrityError(f"{name}: {QUANTIZATION_FILE} says {there}, config.json says {here}", where=where)


def _kv_cache(scheme: Any) -> Any:
    if not isinstance(scheme, Mapping):
        return scheme
    return "FP8" if (scheme.get("num_bits"), scheme.get("type")) == (8, "float") else dict(scheme)


def _check_groups(checkpoint: Checkpoint, inline: Mapping[str, Any], where: str) -> None:
    """The groups of config.json, where there are any, give each layer the bits of its algorithm."""
    for group in (inline.get("config_groups") or {}).values():
        weights, targets = group.get("weights") or {}, group.get("targets") or []
        for name in checkpoint.layers:
            if name not in targets and "Linear" not in targets:
                continue
            layer, scheme = checkpoint.format(name), checkpoint.metadata.scheme(name)
            wanted = (4 if layer.packing != "none" else 8, "int" if layer.integer else "float")
            if (weights.get("num_bits"), weights.get("type")) != wanted:
                raise IntegrityError(
                    f"{layer.algorithm}, but config.json says {weights.get('type')}{weights.get('num_bits')}",
                    where=f"{where}: {name}",
                )
            if layer.sharing == "group" and weights.get("group_size") != scheme.group_size:
                raise IntegrityError(
                    f"groups of {scheme.group_size}, but config.json says {weights.get('group_size')}",
                    where=f"{where}: {name}",
                )


def _check_exclusions(checkpoint: Checkpoint, where: str) -> None:
    metadata = checkpoint.metadata
    for name in checkpoint.layers:
        if any(fnmatchcase(name, pattern) for pattern in metadata.excluded):
            raise IntegrityError(f"{name} is quantized, and excluded by {QUANTIZATION_FILE}", where=where)
    if metadata.algorithm == MIXED and (surplus := sorted(set(metadata.layers) - set(checkpoint.layers))):
        raise IntegrityError(f"{QUANTIZATION_FILE} calls {surplus[:5]} quantized, they have no scales", where=where)


def _check_model_config(source: Path, export: Path) -> None:
    before, after = (load_config(path).to_dict() for path in (source, export))
    for key in sorted(before.keys() | after.keys()):
        if key not in _CHANGED_BY_EXPORT and before.get(key) != after.get(key):
            raise IntegrityError(
                f"{key} is {after.get(key)!r}, the source's is {before.get(key)!r}", where=str(export / "config.json")
            )
