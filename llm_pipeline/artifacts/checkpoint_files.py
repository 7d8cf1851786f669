"""A checkpoint's files beside its weights: what it says of its own quantization, and what that leaves as it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_pipeline.artifacts.model_rules import ADDITIONAL_TEMPLATES, GENERATION, read_model_rules
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.json_document import read_object
from llm_pipeline.model_facts.grouping import Packing
from llm_pipeline.model_facts.words import ConfigWords

COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    GENERATION,
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
)
"""What belongs to a checkpoint beside its weights: tokenizer, generation config, chat template, processor of images."""


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a checkpoint's directory.

    Raises:
        IntegrityError: The file is missing or not a JSON object.
    """
    return read_object(path, finite=False)


def copy_companions(source: Path, destination: Path) -> None:
    """Copy tokenizer, generation config and chat templates.

    The copy's generation_config.json names every token that ends an answer, so that any engine ends answers alike.

    Raises:
        IntegrityError: One of the files is malformed.
    """
    for name in COMPANIONS:
        if (source / name).is_file():
            shutil.copyfile(source / name, destination / name)
    if (source / ADDITIONAL_TEMPLATES).is_dir():
        shutil.copytree(source / ADDITIONAL_TEMPLATES, destination / ADDITIONAL_TEMPLATES)
    if end_tokens := read_model_rules(source).end_tokens:
        path = destination / GENERATION
        generation = read_json(path) if path.is_file() else {}
        path.write_text(json.dumps({**generation, "eos_token_id": list(end_tokens)}, indent=2) + "\n", encoding="utf-8")


QUANTIZATION_FILE = "hf_quant_config.json"
MIXED = "MIXED_PRECISION"
"""modelopt's name of a checkpoint whose layers have formats of their own."""


@dataclass(frozen=True)
class QuantizationMetadata:
    """What a checkpoint says about its own quantization.

    Attributes:
        algorithm: modelopt's name (`FP8`, `W4A16_AWQ`, `MIXED_PRECISION`, ...); of another tool's checkpoint its method
            and format (`compressed-tensors W8A8`, `gptq 4 bit`); None for a plain checkpoint.
        kv_cache: modelopt's name of the KV cache format; None for the model's own precision.
        excluded: Module name patterns left at the model's own precision.
        layers: Of a mixed checkpoint: modelopt's name by quantized layer.
        foreign: Another tool than modelopt quantized it.
    """

    algorithm: str | None
    kv_cache: str | None = None
    excluded: tuple[str, ...] = ()
    layers: Mapping[str, str] = field(default_factory=dict)
    foreign: bool = False

    def algorithm_of(self, layer: str) -> str:
        """What it says about one quantized layer, in modelopt's words.

        Raises:
            IntegrityError: It does not say.
        """
        if self.algorithm not in (None, MIXED):
            return str(self.algorithm)
        if layer not in self.layers:
            raise IntegrityError(f"{QUANTIZATION_FILE} does not say how it is quantized", where=layer)
        return self.layers[layer]


def read_quantization(source: Path) -> QuantizationMetadata:
    """How the checkpoint in `source` is quantized; `algorithm` is None for a plain one.

    Raises:
        IntegrityError: `hf_quant_config.json` is there but is not modelopt's, or config.json says modelopt without it.
    """
    path = source / QUANTIZATION_FILE
    if not path.exists():
        config = read_json(source / "config.json")
        packing = Packing(ConfigWords(config))
        if packing.method == "modelopt":
            raise IntegrityError(f"config.json is quantized but {QUANTIZATION_FILE} is missing", where=str(source))
        return QuantizationMetadata(packing.name or None, packing.kv_cache or None, foreign=bool(packing.method))
    document = read_json(path)
    try:
        facts = document["quantization"]
        return QuantizationMetadata(
            algorithm=facts["quant_algo"],
            kv_cache=facts.get("kv_cache_quant_algo"),
            excluded=tuple(facts.get("exclude_modules") or ()),
            layers={name: scheme["quant_algo"] for name, scheme in (facts.get("quantized_layers") or {}).items()},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(f"not modelopt's quantization file: {error!r}", where=str(path)) from error
