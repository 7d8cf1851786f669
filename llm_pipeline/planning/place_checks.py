"""Whether the places of a release are its model's, before anything is spent: another model's users are not to be taken.

A store that does not answer in time is no error here: the `resolve` stage waits longer, and the canary asks again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from llm_pipeline.base.errors import PipelineError
from llm_pipeline.config.loading import LoadedRelease
from llm_pipeline.planning.background import BackgroundCall
from llm_pipeline.store import ArtifactStore
from llm_pipeline.store.places import Holder, PlaceTaken, require_place


def ask_holders(
    loaded: LoadedRelease, opened: Callable[[], ArtifactStore], seconds: float
) -> BackgroundCall[dict[str, Holder | None]] | None:
    """Ask the store, in the background, which models hold the release's places; not if no time is allowed."""
    return BackgroundCall(partial(_holders, loaded, opened), seconds) if seconds else None


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


def _holders(loaded: LoadedRelease, opened: Callable[[], ArtifactStore]) -> dict[str, Holder | None]:
    store = opened()
    return {place: require_place(store, place, loaded.config.model.id) for place in loaded.places.values()}
