"""What the store says of a release before it begins: what is reused, how long the rest took, who has its places.

A store that cannot be read is no error here: the plan only says less. The `resolve` stage waits longer, and the canary
asks again who has the places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from llm_pipeline.base.errors import PipelineError
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.planning.background import BackgroundCall
from llm_pipeline.planning.directories import ForeignServer, refuse_foreign_servers
from llm_pipeline.planning.history import History, read_history
from llm_pipeline.planning.model import Comparison
from llm_pipeline.planning.reuse import Step, StepReuse, predict_reuse
from llm_pipeline.release.loading import LoadedRelease
from llm_pipeline.release.record import ReleaseRecord
from llm_pipeline.store import ArtifactStore
from llm_pipeline.store.places import Holder, PlaceTaken, require_place


@dataclass(frozen=True)
class StoreLookup:
    """What the store says of the steps.

    Attributes:
        history: Earlier releases; None where the store was not asked, or did not answer.
        newest: The one whose commit was taken; None where there is none of this revision.
        reuse: What will become of each step; None in the same case.
        warnings: Why they are not known.
    """

    history: History | None = None
    newest: ReleaseRecord | None = None
    reuse: Mapping[Step, StepReuse] | None = None
    warnings: tuple[str, ...] = ()

    @property
    def compared_with(self) -> Comparison | None:
        """The earlier release whose commit was taken."""
        newest = self.newest
        if newest is None:
            return None
        return Comparison(release_id=newest.release_id, commit=newest.model.commit, resolved_at=newest.created_at)


def ask_store(
    loaded: LoadedRelease,
    opened: Callable[[], ArtifactStore],
    steps: Sequence[Step],
    ladders: Mapping[str, tuple[str, ...]],
) -> StoreLookup:
    """Read the store.

    Raises:
        Transient: It cannot be read now.
        ConfigError: There is no such store, or nobody may read it.
    """
    store = opened()
    history = read_history(store, loaded)
    alike = history.at(loaded.overrides.revision or loaded.release.model.revision)
    return StoreLookup(history, alike.newest, predict_reuse(store, alike, loaded, steps, ladders))


def looked_up(asked: BackgroundCall[StoreLookup] | None, deployment: Deployment) -> StoreLookup:
    """The store's answer; a warning instead if it has not answered in time."""
    if asked is None:
        return StoreLookup()
    try:
        return asked.answer()
    except (PipelineError, OSError) as error:
        uri = deployment.store.uri
        reason = error.message if isinstance(error, PipelineError) else str(error)
        return StoreLookup(warnings=(f"reuse and measured times are not known: {uri} cannot be read now: {reason}",))


def ask_holders(
    loaded: LoadedRelease, opened: Callable[[], ArtifactStore], seconds: float
) -> BackgroundCall[dict[str, Holder | None]] | None:
    """Ask the store, in the background, who has the release's places; not if no time is allowed."""
    return BackgroundCall(partial(_ask_places, loaded, opened), seconds) if seconds else None


def place_warnings(
    asked: BackgroundCall[dict[str, Holder | None]] | None, loaded: LoadedRelease, *, replace: bool
) -> tuple[str, ...]:
    """The warnings from the answer to `ask_holders`.

    Args:
        asked: The question.
        loaded: The release config.
        replace: The release is meant to take its places over from whoever holds them.

    Raises:
        PlaceTaken: Another model holds one of them, and it is not handed over.
        ForeignServer: Another deployment serves there.
    """
    if asked is None:
        return ()
    model_id = loaded.config.model.id
    try:
        holders = asked.answer()
    except PlaceTaken as error:
        if not replace:
            raise
        return (f"{error.message}: it is handed over to {model_id}",)
    except ForeignServer:
        raise
    except (PipelineError, OSError) as error:
        reason = error.message if isinstance(error, PipelineError) else str(error)
        return (
            f"which models hold the places is not known: {loaded.deployment.store.uri} cannot be read now: {reason}",
        )
    return tuple(
        f"place {place} is handed over by {holder.model_id}: its users get {model_id} once this release is promoted"
        for place, holder in holders.items()
        if holder is not None and holder.model_id != model_id
    )


def _ask_places(loaded: LoadedRelease, opened: Callable[[], ArtifactStore]) -> dict[str, Holder | None]:
    store = opened()
    for place in loaded.places.values():
        refuse_foreign_servers(store, loaded.deployment, place)
    return {place: require_place(store, place, loaded.config.model.id) for place in loaded.places.values()}
