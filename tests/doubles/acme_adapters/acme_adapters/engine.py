# ruff: noqa: ARG002
"""An engine that is the checkpoint itself, and answers by repeating the prompt."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from llm_pipeline.artifacts.engine_description import EngineDescription, EngineFacts
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.target import EngineModel, Target
from llm_pipeline.engines.builder import BuildInputs, EngineAdapter
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.compatibility import Legal, Refused
from llm_pipeline.serving.model_repository import PackagedEngine, write_served_model

CODE = Path(__file__).parent / "served_model.py"


class AcmeEngine(EngineModel):
    repeats: Annotated[int, Field(ge=1, le=9)] = 1

    def problems(self, target: Target, recipe: QuantizationRecipe) -> Iterator[str]:
        if recipe.weights != "none":
            yield f"acme_copy serves plain weights, and {recipe.name} has {recipe.weights}"

    def warnings(self, target: Target, recipe: QuantizationRecipe) -> Iterator[str]:
        if self.repeats > 1:
            yield f"acme_copy says everything {self.repeats} times on {target.name}"


class CopyBuilder:
    def __init__(self, options: AcmeEngine) -> None:
        self._options = options

    def build(self, inputs: BuildInputs, destination: Path) -> EngineFacts:
        destination.mkdir()
        shutil.copy(inputs.checkpoint / "config.json", destination)
        facts = EngineFacts(
            bytes=(destination / "config.json").stat().st_size,
            quantization=None, kv_cache="none", context_length=128, device="cpu", versions={"acme-adapters": "1.0"},
            seconds={"copy": 0.0}, details={"repeats": self._options.repeats},
        )  # fmt: skip
        EngineDescription(facts=facts, target=inputs.target).write(destination)
        return facts


def write_repository(engine: PackagedEngine, repository: Path) -> dict[str, ArtifactRef]:
    version = write_served_model(engine, CODE, repository)
    shutil.copy(engine.directory / "config.json", version / "engine")
    return {}


def _judge_model(facts: ModelFacts, _transformers: str | None) -> Legal | Refused:
    if facts.model_type == "llama":
        return Legal(warnings=("acme_copy was not tried with llamas",))
    return Refused(reason=f"acme_copy repeats llamas only, not {facts.model_type}", nearest="another engine")


ENGINE = EngineAdapter(
    config=AcmeEngine,
    open=CopyBuilder,
    write_repository=write_repository,
    runtime="acme-adapters",
    tools=("acme-adapters",),
    probe=lambda options: f"acme_copy repeats {options.repeats} times",
    judge_model=_judge_model,
    warnings=lambda target: (f"acme_copy says nothing new on {target.name}",),
    holds_weights=False,
    start_seconds=7.0,
)
