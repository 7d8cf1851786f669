"""Places: which model holds the two slots and the router that a deployment has under one name.

A place serves one model. Its holder is written down when the first release of the model is put there, and changes
only by a hand-over that somebody asked for: `hand_over` says who may take it, and `settle_place` is that model's first
promotion. A store of a version before has no such documents: there the model whose pointers say that it is in
production holds the place.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import NamedTuple

from llm_pipeline.base.errors import ConfigError, IntegrityError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.documents import understood
from llm_pipeline.store.pointer_writing import write_pointers
from llm_pipeline.store.pointers import Pointer, read_pointers
from llm_pipeline.store.references import PlacedPointers, readable_pointers

log = get_logger(__name__)


class PlaceTaken(ConfigError):
    """The place belongs to another model."""


class PlaceContested(PlaceTaken):
    """Several models say that they are in production there, and nothing says which of them holds the place."""


class Holder(Frozen):
    """The model that holds a place, and the one that it is handed over to.

    Attributes:
        model_id: `organisation/name`.
        by: The release, or whoever asked, that brought it there; empty where only the pointers tell.
        next_model: The model that it is handed over to, once a release of that is promoted; empty for none.
        next_by: Who handed it over.
    """

    model_id: str
    since: datetime
    by: str = ""
    next_model: str = ""
    next_by: str = ""

    def admits(self, model_id: str) -> bool:
        """Whether releases of a model may be put there."""
        return model_id in (self.model_id, self.next_model)


class Serving(NamedTuple):
    """A release in production, and its model."""

    model_id: str
    pointer: Pointer


def holder_of(store: ArtifactStore, place: str) -> Holder | None:
    """Who holds a place; None while nobody does.

    Raises:
        PlaceContested: It is not written down, and several models have pointers to production there.
        IntegrityError: What is written there is damaged.
    """
    return _read(store, place)[0]


def require_place(store: ArtifactStore, place: str, model_id: str) -> Holder | None:
    """Refuse to put a release of a model into another one's place; returns the holder.

    Raises:
        PlaceTaken: Another model holds it.
    """
    holder = holder_of(store, place)
    if holder is not None and not holder.admits(model_id):
        raise PlaceTaken(
            f"place {place} belongs to {holder.model_id}: a release of {model_id} there would take its users",
            where=f"{store.uri}/{_name(place)}",
            hint=f"give {model_id} a place of its own (`places:` of its release config, and of the deployment), "
            "or hand this one over: --replace of `plan` and `run`, `replace` in the DAG's form",
        )
    return holder


def refuse_stranger(store: ArtifactStore, place: str, model_id: str) -> None:
    """Refuse a rollback only where another model clearly holds the place: a rollback must not wait for the store.

    Raises:
        PlaceTaken: It is.
    """
    try:
        require_place(store, place, model_id)
    except (PlaceContested, IntegrityError, Transient) as error:
        log.warning("which model holds the place is unknown; continuing", place=place, reason=str(error))


def claim_place(store: ArtifactStore, place: str, model_id: str, *, by: str) -> Holder:
    """Claim a free place for a model, before its first release is put there.

    Raises:
        PlaceTaken: Another model holds it.
        Conflict: Somebody else claimed it at the same moment.
    """
    holder = require_place(store, place, model_id)
    _, revision = _read(store, place)
    if holder is None or revision is None:
        holder = holder or Holder(model_id=model_id, since=datetime.now(UTC), by=by)
        store.write_document(_name(place), holder.model_dump(mode="json"), None)
    return holder


def hand_over(store: ArtifactStore, place: str, model_id: str, *, by: str) -> Holder | None:
    """Let a model take a place: the next release of it that is promoted there replaces what serves.

    Asked for its holder, an earlier hand-over is taken back. Asked where several models say that they serve, the model
    holds the place from now on. A place that nobody holds stays free; None is returned.

    Raises:
        Conflict: Somebody else changed it at the same moment.
    """
    try:
        known, revision = _read(store, place)
    except PlaceContested:
        known, revision = Holder(model_id=model_id, since=datetime.now(UTC), by=by), None
    if known is None:
        return None
    if known.model_id == model_id:
        holder = known.model_copy(update={"next_model": "", "next_by": ""})
    else:
        holder = known.model_copy(update={"next_model": model_id, "next_by": by})
    store.write_document(_name(place), holder.model_dump(mode="json"), revision)
    return holder


def serving_at(store: ArtifactStore, place: str) -> Serving | None:
    """What is in production at a place, by its holder's pointers, whichever model that is; None for nothing."""
    holder = holder_of(store, place)
    production = read_pointers(store, holder.model_id, place)[0].production if holder else None
    return Serving(holder.model_id, production) if holder and production else None


def settle_place(store: ArtifactStore, place: str, model_id: str, *, by: str) -> None:
    """Conclude a hand-over: the model is in production there, and what others served there is only their previous.

    Idempotent; where nobody else served there, nothing happens.

    Raises:
        PlaceTaken: Nobody handed it over.
        Conflict: Somebody else changed it at the same moment.
    """
    require_place(store, place, model_id)
    for placed in readable_pointers(store)[0]:
        if placed.target == place and placed.model_id != model_id:
            _leave(store, placed.model_id, place)
    holder, revision = _read(store, place)
    if holder is None or holder.model_id == model_id:
        return
    settled = Holder(model_id=model_id, since=datetime.now(UTC), by=by)
    store.write_document(_name(place), settled.model_dump(mode="json"), revision)


def _leave(store: ArtifactStore, model_id: str, place: str) -> None:
    pointers, revision = read_pointers(store, model_id, place)
    if pointers.production is not None:
        left = pointers.model_copy(update={"production": None, "previous": pointers.production})
        write_pointers(store, model_id, place, left, revision)


class PlaceState(Frozen):
    """A place as it is found.

    Attributes:
        holder: Who holds it; None while nobody does, or nobody can tell.
        in_production: The models whose pointers say that they are in production there, sorted.
    """

    place: str
    holder: Holder | None
    in_production: tuple[str, ...]

    @property
    def problem(self) -> str:
        """What is wrong with it, in one sentence; empty when nothing is."""
        if len(self.in_production) > 1:
            held = f"{self.holder.model_id} holds it" if self.holder else "nothing says which of them holds it"
            return f"{' and '.join(self.in_production)} say that they are in production there; {held}"
        strangers = [model for model in self.in_production if self.holder and model != self.holder.model_id]
        if self.holder and strangers:
            return f"{strangers[0]} says that it is in production there; {self.holder.model_id} holds it"
        return ""

    def __str__(self) -> str:
        if self.problem or self.holder is None:
            return self.problem or "free"
        later = f", handed over to {self.holder.next_model}" if self.holder.next_model else ""
        return f"held by {self.holder.model_id} since {self.holder.since:%Y-%m-%d %H:%M} UTC{later}"


def place_state(store: ArtifactStore, place: str, pointers: Sequence[PlacedPointers]) -> PlaceState:
    """A place, with the pointers that were read before.

    Raises:
        IntegrityError: What is written there is damaged.
    """
    try:
        holder = holder_of(store, place)
    except PlaceContested:
        holder = None
    models = [one.model_id for one in pointers if one.target == place and one.pointers.production is not None]
    return PlaceState(place=place, holder=holder, in_production=tuple(sorted(models)))


def _read(store: ArtifactStore, place: str) -> tuple[Holder | None, str | None]:
    document = store.read_document(_name(place))
    if document is not None:
        return understood(Holder, document.value, _name(place)), document.revision
    pointers, damaged = readable_pointers(store)
    for one in damaged:
        if PurePosixPath(one.name).stem == place:
            raise one.error
    here = [placed for placed in pointers if placed.target == place and placed.pointers.production is not None]
    if len(here) > 1:
        models = ", ".join(sorted(placed.model_id for placed in here))
        raise PlaceContested(
            f"several models say that they are in production at place {place}: {models}",
            where=f"{store.uri}/{_name(place)}",
            hint="`llm-pipeline run` with --replace of the one that keeps it",
        )
    production = here[0].pointers.production if here else None
    return (Holder(model_id=here[0].model_id, since=production.promoted_at), None) if production else (None, None)


def _name(place: str) -> str:
    return f"places/{place}.json"
