"""What a plan asks the store: who holds the release's places, and how long the steps of its newest releases took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from pydantic import ValidationError

from llm_pipeline.base.errors import PipelineError
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.planning.background import BackgroundCall, side_by_side
from llm_pipeline.planning.host import ForeignServer, refuse_foreign_servers
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.flow import step_named
from llm_pipeline.release.loading import LoadedRelease
from llm_pipeline.release.newest import newest_of_config
from llm_pipeline.release.step import Work
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline.store.places import PlaceTaken, require_place

RELEASES_READ = 5
"""Newest releases whose results are read."""

Step = tuple[str, str]
"""A stage, and the subject it works on."""


@dataclass(frozen=True)
class History:
    """The results of a config's newest releases, the newest first, by stage and subject."""

    releases: tuple[Mapping[Step, StageResult], ...] = ()

    def seconds(self, step: Step) -> tuple[float, ...]:
        """How long a step took in the releases that computed it; a canary's only where it went to its end."""
        found = [one for results in self.releases if (one := results.get(step)) and not one.reused and not _cut(one)]
        return tuple(result.timings.total_seconds for result in found)


def _cut(result: StageResult) -> bool:
    """Whether a step of the canary ended by what it saw, and not by its time."""
    step, judged = step_named(result.stage), result.judgement
    return step is not None and step.work is Work.BAKE and judged is not None and judged.verdict is not Verdict.GO


def read_history(store: ArtifactStore, config: str) -> History:
    """Read the newest releases of a config.

    Raises:
        Transient: The store cannot be read now.
        ConfigError: There is no such store.
    """
    newest = newest_of_config(store, config)[:RELEASES_READ]
    return History(tuple(_results(store, noted.release_id) for noted in newest))


def _results(store: ArtifactStore, release_id: str) -> dict[Step, StageResult]:
    wanted = store.list_documents(f"releases/{release_id}/results")
    found = [result for result in side_by_side(partial(_result, store), wanted) if result]
    return {(result.stage, result.subject): result for result in found}


def _result(store: ArtifactStore, name: str) -> StageResult | None:
    document = store.read_document(name)
    try:
        return StageResult.model_validate(document.value) if document else None
    except ValidationError:
        return None


@dataclass(frozen=True)
class StoreAnswer:
    """What the store says.

    Attributes:
        history: Empty where it did not answer.
        warnings: What is not known because it did not, and places that change hands.
    """

    history: History = History()
    warnings: tuple[str, ...] = ()


def ask_store(loaded: LoadedRelease, seconds: float, *, replace: bool) -> BackgroundCall[StoreAnswer] | None:
    """Ask the store in the background, for so long at most; not at all if no time is allowed."""

    def ask() -> StoreAnswer:
        store = open_store(loaded.deployment.store)
        warnings = _places(store, loaded, replace=replace)  # first: a store slow with releases must hide no holder
        return StoreAnswer(read_history(store, loaded.config.name), warnings)

    return BackgroundCall(ask, seconds) if seconds else None


def answer_of(asked: BackgroundCall[StoreAnswer] | None, loaded: LoadedRelease) -> StoreAnswer:
    """The store's answer; a warning instead if it has not answered in time.

    Raises:
        PlaceTaken: Another model holds one of the release's places, and it is not handed over.
        ForeignServer: Another deployment serves there.
    """
    if asked is None:
        return StoreAnswer()
    try:
        return asked.answer()
    except (PlaceTaken, ForeignServer):
        raise
    except (PipelineError, OSError) as error:
        uri, reason = loaded.deployment.store.uri, error.message if isinstance(error, PipelineError) else str(error)
        unknown = "which models hold the places and how long steps took before is not known"
        return StoreAnswer(warnings=(f"{unknown}: {uri} cannot be read now: {reason}",))


def _places(store: ArtifactStore, loaded: LoadedRelease, *, replace: bool) -> tuple[str, ...]:
    model_id, warnings = loaded.config.model.id, list[str]()
    for place in loaded.places.values():
        refuse_foreign_servers(store, loaded.deployment, place)
        try:
            holder = require_place(store, place, model_id).model_id
        except PlaceTaken as error:
            if not replace:
                raise
            warnings.append(f"{error.message}: it is handed over to {model_id}")
            continue
        if holder not in ("", model_id):
            warnings.append(
                f"place {place} is handed over by {holder}: its users get {model_id} once this release is promoted"
            )
    return tuple(warnings)
