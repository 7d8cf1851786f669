"""Stage `download`: a pinned model from the hub into the store, every byte verified."""

from __future__ import annotations

from pydantic import Field

from llm_pipeline.config.model import ConfigModel, HubId
from llm_pipeline.hub.pinned import HubFile, PinnedModel, Sha1
from llm_pipeline.stages.contract import Produced, Stage, StageContext, StageOutput


class DownloadConfig(ConfigModel):
    """What is fetched, and from where.

    Attributes:
        model_id: `organisation/name`.
        commit: The pinned commit.
        files: What is fetched; nothing else is.
        endpoint: The hub; None for the public one. A place, not part of the stage key: the hashes say what is fetched.
        token_variable: Environment variable that holds the access token. A place, too.
    """

    model_id: HubId
    commit: Sha1
    files: tuple[HubFile, ...] = Field(min_length=1)
    endpoint: str | None = None
    token_variable: str = "HF_TOKEN"  # noqa: S105 - a variable's name


def _run(context: StageContext[DownloadConfig]) -> StageOutput:
    from llm_pipeline.hub.access import connect
    from llm_pipeline.hub.download import download_model

    config = context.config
    model = PinnedModel(id=config.model_id, commit=config.commit, files=config.files)
    destination = context.workdir / "checkpoint"
    report = download_model(connect(config.endpoint, config.token_variable), model, destination)
    return StageOutput(
        artifacts={"checkpoint": Produced("checkpoint", destination)},
        metrics={
            "bytes": report.bytes,
            "files": report.files,
            "fetched_bytes": report.fetched_bytes,
            "seconds": round(report.seconds, 3),
            "megabytes_per_second": round(report.megabytes_per_second, 1),
        },
        tool_seconds=report.seconds,
    )


STAGE = Stage(
    name="download",
    version=1,
    config=DownloadConfig,
    run=_run,
    environment="control",
    places=frozenset({"endpoint", "token_variable"}),
)
