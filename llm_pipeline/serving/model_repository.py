"""Triton model repositories: written through the protobuf that the server itself parses, and linted before use.

Every repository holds the model `llm`: `llm/config.pbtxt`, `llm/1/model.py` and `llm/1/engine/engine.json`, and beside
`llm/` the golden prompts, `release.json` (facts for people and tools) and, where weights are not copied, `links.json`.
The rest is the engine builder's (`serving/repositories`). A repository is read-only once written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_pipeline.artifacts import golden as golden_prompts
from llm_pipeline.artifacts.engine_description import EngineDescription
from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.artifacts.repository_layout import FACTS_FILE, MODEL_NAME, MODEL_VERSION
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.target import Target
from llm_pipeline.engines.builder import engine_adapter
from llm_pipeline.serving.repositories.packaged import Fact, PackagedEngine
from llm_pipeline.serving.repository_links import write_links
from llm_pipeline.serving.repository_lint import lint_repository

__all__ = ["Fact", "RepositoryFacts", "lint_repository", "write_repository"]


@dataclass(frozen=True)
class RepositoryFacts:
    """Name, size and limits of a model repository that was written.

    Attributes:
        model: The model's name in Triton.
        version: Its version.
        bytes: Size of all files, without what is linked.
        files: How many.
        golden_prompts: How many golden prompts it carries.
        maximum_tokens_per_request: The limit that the server enforces: the target's, or the model's if smaller.
    """

    model: str
    version: int
    bytes: int
    files: int
    golden_prompts: int
    maximum_tokens_per_request: int


def write_repository(
    engine: Path,
    golden: Sequence[GoldenPrompt],
    facts: Mapping[str, Fact],
    target: Target,
    destination: Path,
    *,
    engine_ref: ArtifactRef,
) -> RepositoryFacts:
    """Write the model repository of an engine into the new directory `destination`, and lint it.

    Args:
        engine: The engine directory, with `engine.json`.
        golden: Golden prompts, written beside the model.
        facts: Kept in `release.json` and shown as parameters `fact_<name>` of the model.
        target: What the server accepts at once, and how it queues and streams.
        destination: Directory to make.
        engine_ref: The engine's name in the store, for what is linked and not copied.

    Raises:
        IntegrityError: The engine is not one, or the result breaks a rule of the server.
        ConfigError: Options of the target do not fit together.
    """
    packaged = PackagedEngine(engine, engine_ref, EngineDescription.read(engine), target, facts)
    destination.mkdir()
    write_links(destination, engine_adapter(packaged.description.facts.builder).write_repository(packaged, destination))
    golden_prompts.write_golden(destination, golden)
    (destination / FACTS_FILE).write_text(json.dumps(dict(facts), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if problems := lint_repository(destination):
        raise IntegrityError("the model repository breaks the server's rules: " + "; ".join(problems), where="package")
    files = [path for path in destination.rglob("*") if path.is_file()]
    return RepositoryFacts(
        model=MODEL_NAME,
        version=MODEL_VERSION,
        bytes=sum(path.stat().st_size for path in files),
        files=len(files),
        golden_prompts=len(golden),
        maximum_tokens_per_request=packaged.limits.maximum_tokens_per_request,
    )
