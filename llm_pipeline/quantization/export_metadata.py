"""Whether an export says the same of itself everywhere, and of the model what the source says.

An engine reads `hf_quant_config.json`, or `quantization_config` in config.json, or both; where they differ, or differ
from the tensors, it computes something else without an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from llm_pipeline.artifacts.checkpoint_files import read_json
from llm_pipeline.artifacts.checkpoint_loading import load_config
from llm_pipeline.artifacts.checkpoint_metadata import QUANTIZATION_FILE
from llm_pipeline.artifacts.quantized_checkpoint import Checkpoint
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.catalog.exported_names import MIXED

_CHANGED_BY_EXPORT = frozenset({"quantization_config", "dtype", "torch_dtype", "transformers_version", "_name_or_path"})


def check_metadata(source: Path, export: Path, checkpoint: Checkpoint) -> None:
    """Compare the export's two descriptions with each other and with its layers, and its config with the source's.

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
