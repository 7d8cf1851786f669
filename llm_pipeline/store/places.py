"""Which model holds the two slots and the router that a deployment has under one name.

A place serves one model. Its holder is written down when the first release of the model is put there, and changes
only by a hand-over that somebody asked for: `hand_over` says who may take it, and that model's first promotion does.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from llm_pipeline.base.errors import ConfigError, IntegrityError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.place_state import PlaceState, Pointer, edit_place, place_name, read_place

log = get_logger(__name__)


class PlaceTaken(ConfigError):
    """The place belongs to another model."""


class Serving(NamedTuple):
    """A release in production, and its model."""

    model_id: str
    pointer: Pointer


def require_place(store: ArtifactStore, place: str, model_id: str) -> PlaceState:
    """Refuse to put a release of a model into another one's place; returns the place.

    Raises:
        PlaceTaken: Another model holds it.
        IntegrityError: What is written there is damaged.
    """
    return _admitting(store, read_place(store, place), place, model_id)


def refuse_stranger(store: ArtifactStore, place: str, model_id: str) -> None:
    """Refuse a rollback only where another model clearly holds the place.

    Raises:
        PlaceTaken: It is.
    """
    try:
        require_place(store, place, model_id)
    except (IntegrityError, Transient) as error:
        log.warning("which model holds the place is unknown; continuing", place=place, reason=str(error))


def claim_place(store: ArtifactStore, place: str, model_id: str, *, by: str) -> PlaceState:
    """Claim a free place for a model, before its first release is put there.

    Raises:
        PlaceTaken: Another model holds it.
    """

    def claimed(state: PlaceState) -> PlaceState:
        if _admitting(store, state, place, model_id).model_id:
            return state
        return state.model_copy(update={"model_id": model_id, "since": datetime.now(UTC), "by": by})

    return edit_place(store, place, claimed)


def hand_over(store: ArtifactStore, place: str, model_id: str, *, by: str) -> PlaceState:
    """Let a model take a place: the next release of it that is promoted there replaces what serves.

    Asked for its holder, an earlier hand-over is taken back. A place that nobody holds stays free.
    """

    def handed_over(state: PlaceState) -> PlaceState:
        if not state.model_id or state.model_id == model_id:
            return state.model_copy(update={"next_model": "", "next_by": ""})
        return state.model_copy(update={"next_model": model_id, "next_by": by})

    return edit_place(store, place, handed_over)


def serving_at(store: ArtifactStore, place: str) -> Serving | None:
    """What is in production at a place, and of which model; None for nothing."""
    state = read_place(store, place)
    return Serving(state.model_id, state.production) if state.production else None


def _admitting(store: ArtifactStore, state: PlaceState, place: str, model_id: str) -> PlaceState:
    if not state.admits(model_id):
        raise PlaceTaken(
            f"place {place} belongs to {state.model_id}: a release of {model_id} there would take its users",
            where=f"{store.uri}/{place_name(place)}",
            hint=f"give {model_id} a place of its own (`places:` of its release config, and of the deployment), "
            "or hand this one over: --replace of `plan` and `run`, `replace` in the DAG's form",
        )
    return state
