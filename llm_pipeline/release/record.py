"""The record of a release: what was decided when it started, read by every later stage."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from llm_pipeline.artifacts.pinned import PinnedModel
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.overrides import Overrides
from llm_pipeline.config.release import Budget, ResolvedRelease
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.release.candidate import target_of
from llm_pipeline.store import ArtifactStore
from llm_pipeline.store.documents import Document, understood
from llm_pipeline.store.signed_documents import refusal, require_signed


class ReleaseRecord(Frozen):
    """A release as resolved: nothing that happens outside can change it any more.

    Attributes:
        release_id: `<config name>-<commit, 8 digits>-<config digest, 8 digits>`: the same input, the same release.
        model: The model at its pinned commit.
        checkpoints: The checkpoints that recipes name as their source, by recipe, at their pinned commits.
        datasets: Calibration sets, evaluation tasks and prompts, as artifacts.
        brings_data: Whether all tasks bring their data in the task directory, and read nothing of the hub.
        ladders: Names of the recipes that are legal on each target, cheapest first.
        facts: What the model is.
        places: Names of the deployment's places, by the target that goes there; one that is missing has its own.
        budget: What its last run may take by its plan before a person is asked.
        overrides: What the run that resolved it last has otherwise than the release config says.
        overridden_by: Who asked for that; empty for nobody.
        created_at: When it was resolved last: every run of the release resolves it again, so it tells runs apart.
    """

    release_id: str
    release: ResolvedRelease
    deployment: Deployment
    model: PinnedModel
    checkpoints: dict[str, PinnedModel] = Field(default_factory=dict)
    datasets: dict[str, ArtifactRef]
    brings_data: bool = False
    ladders: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    facts: ModelFacts | None = None
    places: dict[str, str] = Field(default_factory=dict)
    budget: Budget = Budget()
    overrides: Overrides = Overrides()
    overridden_by: str = ""
    created_at: datetime

    @property
    def overrides_in_words(self) -> str:
        """What was overridden, and by whom; empty for nothing."""
        return f"{self.overrides}, by {self.overridden_by}" if self.overrides else ""

    def place_of(self, target: str) -> str:
        """Name of the place that a target, or a candidate for it, goes to."""
        target = target_of(target)
        return self.places.get(target, target)

    def target_at(self, place: str) -> str:
        """The target that goes to a place; for a place that has none, its own name."""
        return next((target for target, name in self.places.items() if name == place), place)


def release_record_name(release_id: str) -> str:
    """Name of a release's record in the store."""
    return f"releases/{release_id}/release.json"


def report_name(release_id: str, suffix: str = "html") -> str:
    """Name of a release's report in the store."""
    return f"releases/{release_id}/report.{suffix}"


def read_release_record(store: ArtifactStore, release_id: str) -> ReleaseRecord:
    """The record of a release; whether it is signed is not checked.

    Raises:
        ConfigError: There is no such release.
        IntegrityError: The record cannot be understood.
    """
    name = release_record_name(release_id)
    return understood(ReleaseRecord, _document(store, release_id).value, name)


def trusted_record(store: ArtifactStore, release_id: str) -> ReleaseRecord:
    """The record of a release, to go on with it.

    Raises:
        ConfigError: There is no such release.
        IntegrityError: The record cannot be understood, is another release's, or is not signed as the store requires.
    """
    name, document = release_record_name(release_id), _document(store, release_id)
    require_signed(store, name, document)
    record = understood(ReleaseRecord, document.value, name)
    if record.release_id != release_id:
        raise refusal(store, name, f"it is of release {record.release_id}")
    return record


def _document(store: ArtifactStore, release_id: str) -> Document:
    document = store.read_document(release_record_name(release_id))
    if document is None:
        raise ConfigError(f"no release {release_id!r} in {store.uri}", hint="`llm-pipeline ls` lists them")
    return document
