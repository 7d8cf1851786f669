"""Models as they were published: config.json of each, and the figures that others give for it (`models/<name>/`)."""

from __future__ import annotations

import json
import re
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.model_facts.grouping import HeldTensor
from llm_pipeline.model_facts.reader import ModelDocuments, read_facts

MODELS = Path(__file__).parent / "models"
BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1}
NAMES = sorted(path.name for path in MODELS.iterdir())


def config_of(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((MODELS / name / "config.json").read_text())
    return config


def figures_of(name: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((MODELS / name / "published.json").read_text())
    return figures


def tensors_of(name: str) -> list[HeldTensor] | None:
    """What the headers of the files hold (`tensors.json`), for what does not follow from config.json alone."""
    path = MODELS / name / "tensors.json"
    if not path.exists():
        return None
    return [
        HeldTensor(tensor, dtype, tuple(shape), BYTES[dtype] * prod(shape))
        for pattern, (dtype, *shape) in json.loads(path.read_text()).items()
        for tensor in _numbered(pattern)
    ]


def _numbered(pattern: str) -> list[str]:
    """A name for each number that `[0-60]` stands for."""
    span = re.search(r"\[(\d+)-(\d+)\]", pattern)
    if span is None:
        return [pattern]
    numbers = range(int(span[1]), int(span[2]) + 1)
    return [name for number in numbers for name in _numbered(pattern.replace(span[0], str(number), 1))]


@cache
def facts_of(name: str) -> ModelFacts:
    return read_facts(ModelDocuments(config_of(name), tensors_of(name)))
