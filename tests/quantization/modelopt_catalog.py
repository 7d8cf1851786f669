"""Writes the table of modelopt's recipe files from the modelopt that is installed.

    .envs/model/bin/python tests/quantization/modelopt_catalog.py

A test compares the table with the installed modelopt; run this again with another version of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from llm_pipeline.catalog.modelopt_recipes import ModeloptRecipe
from llm_pipeline.config.quantization import WEIGHT_BITS, KvCacheFormat, WeightFormat
from llm_pipeline.quantization.modelopt_configs import load_modelopt_recipe

TABLE = Path(__file__).parents[2] / "llm_pipeline" / "catalog" / "data" / "modelopt_recipes.json"

_TRAINING = "it is a part of training, not of quantization after training"
_REFUSED_TYPES = {
    "auto_quantize": "it is a search: write `weights: auto` with a `search` section instead",
    "speculative_eagle": "it trains a draft model",
    "speculative_dflash": "it trains a draft model",
    "speculative_medusa": "it trains a draft model",
}
_OTHER_MODELS = {
    "vit": "it is for vision transformers",
    "diffusion_gemma": "it is for diffusion models",
    "nemotron_vl": "it is for models that read images",
    "minimax_m3_vl": "it is for models that read images",
}
_DATA_ALGORITHMS = {"awq_lite", "awq_clip", "awq_full", "smoothquant", "svdquant", "gptq", "nvfp4_act_headroom"}


def catalog() -> dict[str, ModeloptRecipe]:
    """Every recipe file of the installed modelopt, by name."""
    return {name: _describe(name, content) for name, content in _recipe_files()}


def main() -> None:
    """Write the table of the installed modelopt's recipe files."""
    rows = {name: recipe.model_dump(mode="json", exclude_defaults=True) for name, recipe in catalog().items()}
    TABLE.write_text(json.dumps({"modelopt": version("nvidia-modelopt"), "recipes": rows}, indent=1) + "\n")


def _recipe_files() -> Iterator[tuple[str, Mapping[str, Any]]]:
    root = Path(str(files("modelopt_recipes")))
    for path in sorted(path for kind in ("general", "huggingface", "models") for path in (root / kind).rglob("*.yaml")):
        content = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))[-1]
        name = path.relative_to(root).with_suffix("").as_posix()
        if "/distillation/" in name or (isinstance(content, dict) and "metadata" in content):
            yield name, content


def _describe(name: str, content: Mapping[str, Any]) -> ModeloptRecipe:
    kind = content.get("metadata", {}).get("recipe_type")
    family, owner, checkpoint, *_ = name.split("/")
    if "/distillation/" in name:
        return ModeloptRecipe(refused=_TRAINING)
    if refused := _REFUSED_TYPES.get(kind) or _OTHER_MODELS.get(owner):
        return ModeloptRecipe(refused=refused)
    config = load_modelopt_recipe(name)
    method = _method(config)
    if method == "lsq":
        return ModeloptRecipe(refused=_TRAINING)
    made_for = {"general": "", "huggingface": owner}.get(family, f"{owner}/{checkpoint}")
    return _from_quantizers(config, method, made_for)


def _method(config: Mapping[str, Any]) -> str:
    algorithm = config["algorithm"]
    return str(algorithm["method"] if isinstance(algorithm, dict) else algorithm)


def _from_quantizers(config: Mapping[str, Any], method: str, made_for: str) -> ModeloptRecipe:
    enabled = [entry for entry in config["quant_cfg"] if entry.get("enable") is not False]
    weights = {entry["quantizer_name"]: entry["cfg"] for entry in enabled if "weight" in entry["quantizer_name"]}
    others = {entry["quantizer_name"]: entry["cfg"] for entry in enabled if "weight" not in entry["quantizer_name"]}
    inputs = {pattern: cfg for pattern, cfg in others.items() if "input" in pattern}
    caches = [cfg for pattern, cfg in others.items() if "input" not in pattern]
    formats = {
        _format(cfg, method, has_input=pattern.replace("weight", "input") in inputs) for pattern, cfg in weights.items()
    }
    return ModeloptRecipe(
        formats=tuple(sorted(formats, key=lambda name: (WEIGHT_BITS[name] or 0, name))),
        weight_only=not inputs,
        whole_model="*weight_quantizer" in weights,
        kv_cache=_kv_format(caches[0]) if caches else "none",
        calibrated=method in _DATA_ALGORITHMS or any(map(_is_calibrated, others.values())),
        made_for=made_for,
    )


def _format(cfg: Any, method: str, *, has_input: bool) -> WeightFormat:
    awq = method.startswith("awq")
    if isinstance(cfg, list):
        return "w4a8_awq"
    bits, block = cfg["num_bits"], cfg.get("block_sizes") or {}
    if bits == (2, 1) and block["scale_bits"] == (4, 3):
        return "nvfp4_awq" if awq else "nvfp4"
    if bits == (2, 1):
        return "mxfp4"
    if bits == (4, 3):
        return "fp8_block" if block else "fp8_per_channel_token" if cfg.get("axis") == 0 else "fp8"
    if block:
        return "int4_awq" if awq else "int4_blockwise"
    return "int8_smoothquant" if has_input else "int8_weight_only"


def _kv_format(cfg: Mapping[str, Any]) -> KvCacheFormat:
    return "nvfp4" if cfg["num_bits"] == (2, 1) else "fp8"


def _is_calibrated(cfg: Mapping[str, Any]) -> bool:
    """Whether a quantizer's scale comes from data: NVFP4's blocks are scaled at run time, its tensors are not."""
    fixed = cfg.get("use_constant_amax") or cfg.get("constant_amax")
    at_run_time = cfg.get("type") == "dynamic" or (cfg.get("block_sizes") or {}).get("scale_bits") == (8, 0)
    return not fixed and not at_run_time


if __name__ == "__main__":
    main()
