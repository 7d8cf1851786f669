"""Models as they were published: config.json of each, and the figures that others give for it (`models/<name>/`)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.model_facts.reader import ModelDocuments, read_facts

MODELS = Path(__file__).parent / "models"
NAMES = sorted(path.name for path in MODELS.iterdir())


def config_of(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((MODELS / name / "config.json").read_text())
    return config


def figures_of(name: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((MODELS / name / "published.json").read_text())
    return figures


@cache
def facts_of(name: str) -> ModelFacts:
    return read_facts(ModelDocuments(config_of(name)))
