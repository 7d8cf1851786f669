"""The record of a release: what was decided when it started, read by every later stage."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field, ValidationError

from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.errors import ConfigError, IntegrityError
from llm_pipeline.hub.pinned import PinnedModel
from llm_pipeline.stages.contract import ArtifactRef, Frozen
from llm_pipeline.store import ArtifactStore

TASKS_DATASET = "tasks"
PROMPTS_DATASET = "prompts"


def calibration_dataset(recipe: str) -> str:
    """Name of a recipe's calibration set among the datasets of a release."""
    return f"calibration.{recipe}"


class ReleaseRecord(Frozen):
    """A release as resolved: nothing that happens outside can change it any more.

    Attributes:
        release_id: `<config name>-<commit, 8 digits>-<config digest, 8 digits>`: the same input, the same release.
        model: The model at its pinned commit.
        datasets: Calibration sets, evaluation tasks and prompts, as artifacts.
        ladders: Names of the recipes that are legal on each target, cheapest first.
        created_at: When it was resolved last: every run of the release resolves it again, so it tells runs apart.
    """

    release_id: str
    release: ResolvedRelease
    deployment: Deployment
    model: PinnedModel
    datasets: dict[str, ArtifactRef]
    ladders: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    created_at: datetime


def record_name(release_id: str) -> str:
    """Name of a release's record in the store."""
    return f"releases/{release_id}/release.json"


def read_record(store: ArtifactStore, release_id: str) -> ReleaseRecord:
    """The record of a release.

    Raises:
        ConfigError: There is no such release.
        IntegrityError: The record cannot be understood.
    """
    document = store.read_document(record_name(release_id))
    if document is None:
        raise ConfigError(f"no release {release_id!r} in {store.uri}", hint="`llm-pipeline ls` lists them")
    try:
        return ReleaseRecord.model_validate(document.value)
    except ValidationError as error:
        raise IntegrityError(f"the record of release {release_id} is not valid: {error}") from error
