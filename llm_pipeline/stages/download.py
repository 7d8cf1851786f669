"""The download stage: fetches the files of the pinned commit, every byte verified."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from llm_pipeline.artifacts.pinned import HubFile, ObjectVersion, PinnedModel, Sha1
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.config.deployment import HubAccess
from llm_pipeline.config.model import ConfigModel, HubId
from llm_pipeline.config.release import ModelSource
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.model_facts.reader import read_facts
from llm_pipeline.release.contract import Inputs, Produced, Stage, StageContext, StageOutput

if TYPE_CHECKING:
    from llm_pipeline.release_progress import ReleaseProgress


class DownloadConfig(ConfigModel):
    """What is fetched, and from where.

    Attributes:
        model_id: `organisation/name`.
        commit: The pinned commit.
        files: What is fetched; nothing else is.
        source: Where the files come from. A place, not part of the stage key: the hashes say what is fetched.
        versions: Of the files in S3, by path: how they are asked for. A place, too.
        hub: How the hub is reached. A place, too.
        sizes: What the release config states of the model. Not in the key: with `facts` it only checks what comes.
        facts: What the plan judged the model by; None for no check.
    """

    model_id: HubId
    commit: Sha1
    files: tuple[HubFile, ...] = Field(min_length=1)
    source: str = "hub"
    versions: dict[str, ObjectVersion] = Field(default={})
    hub: HubAccess = HubAccess()
    sizes: dict[str, int | bool | str] | None = None
    facts: ModelFacts | None = None


def download_config(
    model: PinnedModel, source: ModelSource, hub: HubAccess, facts: ModelFacts | None = None
) -> DownloadConfig:
    """What the stage is given for a pinned model."""
    return DownloadConfig(
        model_id=model.id,
        commit=model.commit,
        files=model.files,
        source=source.source,
        versions=model.versions,
        hub=hub,
        sizes=None if source.sizes is None else {**source.sizes},
        facts=facts,
    )


def _run(context: StageContext[DownloadConfig]) -> StageOutput:
    return fetch(context.config, context)


def fetch(config: DownloadConfig, context: StageContext[Any]) -> StageOutput:
    """Download a pinned model, check it and say what it took.

    Raises:
        IntegrityError: It is damaged, or not the model that the plan saw.
        Terminal: The source does not give it.
        Transient: The source cannot be reached.
    """
    started = time.monotonic()
    from llm_pipeline.hub.download import bytes_of, download_model
    from llm_pipeline.hub.sources import open_source  # the hub's client loads slowly, which is its own time

    destination = context.workdir / CHECKPOINT
    source = open_source(config.source, config.hub, context.request.store)
    model = PinnedModel(id=config.model_id, commit=config.commit, files=config.files, versions=config.versions)
    fetched = download_model(source, model, destination)
    seconds = time.monotonic() - started
    if config.facts is not None:
        _require_same(config.facts, destination, config.sizes)
    return StageOutput(
        artifacts={CHECKPOINT: Produced(CHECKPOINT, destination)},
        metrics={
            "bytes": model.size,
            "files": len(model.files),
            "fetched_bytes": bytes_of(fetched),
            "seconds": round(seconds, 3),
        },
        tool_seconds=seconds,
    )


def _require_same(planned: ModelFacts, checkpoint: Path, sizes: Mapping[Any, Any] | None) -> None:
    """Judge the model once more, by the bytes that came: memory and legality were judged by what was seen before.

    Raises:
        IntegrityError: It is not the model that the plan saw.
    """
    from llm_pipeline.hub.directory_source import DirectorySource
    from llm_pipeline.hub.model_look import read_documents

    look = DirectorySource(checkpoint).look("", "")
    found = read_facts(read_documents(look), sizes).model_copy(update={"origin": planned.origin})
    seen, came = planned.model_dump(exclude={"ready"}), found.model_dump(exclude={"ready"})
    if differing := [name for name, value in seen.items() if came[name] != value]:
        name = differing[0]
        raise IntegrityError(
            f"the downloaded model is not the one that the plan judged: {', '.join(differing)} differ; {name} was "
            f"{str(seen[name])[:80]}, is {str(came[name])[:80]}",
            where="download",
            hint="the revision moved meanwhile: release it again",
        )


CHECKPOINT = "checkpoint"


def request(flow: ReleaseProgress, _subject: str) -> tuple[DownloadConfig, Inputs]:
    """What the stage is given."""
    record = flow.record
    return download_config(record.model, flow.release.model, flow.deployment.hub, record.facts), {}


STAGE = Stage(
    name="download",
    version=2,
    config=DownloadConfig,
    request=request,
    run=_run,
    places=frozenset({"source", "versions", "hub", "sizes", "facts"}),
)
