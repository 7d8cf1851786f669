"""The download stage: fetches the files of the pinned commit, every byte verified."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from llm_pipeline.artifacts.pinned import HubFile, PinnedModel, Sha1
from llm_pipeline.config.deployment import HubAccess
from llm_pipeline.config.model import ConfigModel, HubId
from llm_pipeline.config.release import ModelSource
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
        hub: How the hub is reached. A place, too.
    """

    model_id: HubId
    commit: Sha1
    files: tuple[HubFile, ...] = Field(min_length=1)
    source: str = "hub"
    hub: HubAccess = HubAccess()


def download_config(model: PinnedModel, source: ModelSource, hub: HubAccess) -> DownloadConfig:
    """What the stage is given for a pinned model."""
    return DownloadConfig(model_id=model.id, commit=model.commit, files=model.files, source=source.source, hub=hub)


def fetch(config: DownloadConfig, context: StageContext[Any]) -> StageOutput:
    """Download a pinned model and say what it took.

    Raises:
        IntegrityError: It is damaged.
        Terminal: The source does not give it.
        Transient: The source cannot be reached.
    """
    from llm_pipeline.hub.download import bytes_of, download_model
    from llm_pipeline.hub.sources import open_source  # the hub's client loads slowly

    destination = context.workdir / CHECKPOINT
    source = open_source(config.source, config.hub, context.request.store)
    model = PinnedModel(id=config.model_id, commit=config.commit, files=config.files)
    fetched = download_model(source, model, destination)
    return StageOutput(
        artifacts={CHECKPOINT: Produced(CHECKPOINT, destination)},
        metrics={"bytes": model.size, "files": len(model.files), "fetched_bytes": bytes_of(fetched)},
    )


CHECKPOINT = "checkpoint"


def request(flow: ReleaseProgress, _subject: str) -> tuple[DownloadConfig, Inputs]:
    """What the stage is given."""
    return download_config(flow.record.model, flow.release.model, flow.deployment.hub), {}


STAGE = Stage(
    name="download",
    version=2,
    config=DownloadConfig,
    request=request,
    run=lambda context: fetch(context.config, context),
    places=frozenset({"source", "hub"}),
)
