"""What is known of a place: one document, changed by compare-and-swap, whoever acts there.

    state = read_place(store, "h100")
    edit_place(store, "h100", lambda state: state.model_copy(update={"pause": pause}))

Promote, hand over, pause, answer and roll back are edits of it, which any process may make; whoever holds the place's
lease carries them out. How a canary went is in the record of its release, and what runs is asked of servers and router.
It is not signed, because processes without a key change it: what it names is checked against what is signed, in
`llm_pipeline.release.trusted_pointers`.

A place (two slots and a router) serves one model. Its holder is written down when the first release of the model is put
there, and changes only by a hand-over that somebody asked for: `hand_over` says who may take it, and that model's first
promotion does.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from llm_pipeline.base.errors import ConfigError, IntegrityError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.documents import DamagedDocument

Slot = Literal["blue", "green"]
Question = Literal["begin", "go on"]
"""May the step begin; or: may a canary that waits at this step go on, as if the step had passed."""

Answer = Literal["waiting", "approved", "denied", "timed out"]

_MOST_TAKEN_BACK = 20
_MOST_APPROVALS = 20


class Pointer(Frozen):
    """A release in a slot."""

    release_id: str
    repository: ArtifactRef
    slot: Slot
    recipe: str
    promoted_at: datetime


class PauseRequest(Frozen):
    """A person's pause of a canary. Times are seconds since 1970.

    Attributes:
        attempt: When the attempt began that it belongs to, as in `CanaryRecord.began_at`.
        by: Who paused it.
        why: In the person's words; may be empty.
        deadline_seconds: Paused for longer, it is rolled back: a forgotten canary must not keep its users for ever.
        resumed_by: Who ended it; empty while it stands.
    """

    attempt: float
    by: str
    why: str = ""
    since: float
    deadline_seconds: float
    resumed_by: str = ""

    def holds(self, attempt: float) -> bool:
        """Whether an attempt is paused by it."""
        return self.resumed_by == "" and self.attempt == attempt

    def over(self, now: float) -> bool:
        """Whether it has lasted too long."""
        return now - self.since > self.deadline_seconds

    def words(self) -> str:
        """Who paused it and what becomes of it, for logs and people."""
        why = f" ({self.why})" if self.why else ""
        return f"{self.by} paused it{why}; rolled back if nobody resumes it within {self.deadline_seconds:.0f} s"


class StepApproval(Frozen):
    """A question about a step of a canary and what became of it; the first answer wins. Times are seconds since 1970.

    It may be answered before it is asked: by an approval task that runs ahead of the step.

    Attributes:
        run: The run of the release that it belongs to; answers of other runs do not count.
        asked_at: None when it was answered before it was asked.
        deadline_seconds: How long it waits for an answer.
        by: Who answered.
    """

    release_id: str
    run: str
    percent: float
    question: Question
    asked_at: float | None = None
    deadline_seconds: float = 0.0
    answer: Answer = "waiting"
    answered_at: float | None = None
    by: str = ""

    def overdue(self, now: float) -> bool:
        """Whether it waits for longer than it may."""
        return self.answer == "waiting" and self.asked_at is not None and now - self.asked_at > self.deadline_seconds


class WayBack(Frozen):
    """A rollback from one release to another: written before anything moves, and again when it is done.

    Any process that finds an unfinished one completes it.

    Attributes:
        left: The release that is rolled back: it was on trial, or served.
        to: The release that serves afterwards.
        by: Who asked for it, and why.
        repository: What `left` served.
        began_at: When the canary of `left` began, if it was on trial: later attempts are not affected.
        done: Everything was moved and stopped.
    """

    left: str
    to: str
    by: str
    asked_at: datetime
    repository: ArtifactRef
    began_at: float | None = None
    done: bool = False


class PlaceState(Frozen):
    """One place.

    Attributes:
        model_id: `organisation/name` of the model that holds it; empty while nobody does.
        since: Since when.
        by: The release that brought it there.
        next_model: The model that it is handed over to, once a release of that is promoted; empty for none.
        next_by: Who handed it over.
        production: What serves.
        previous: What a rollback of production restores; None after one: only another canary brings a release that was
            rolled back into production again.
        previous_model: The model of `previous`.
        keep_until: Until when `previous` stays warm.
        taken_back: Releases that were rolled back here since they were promoted, the latest last.
        on_trial: The release of the latest canary; its record says whether that has ended.
        pause: A person's latest one.
        approvals: What was asked or answered about steps, the latest last.
        way_back: The latest rollback.
        guarded_at: When the guard looked at it last, in seconds since 1970.
    """

    model_id: str = ""
    since: datetime | None = None
    by: str = ""
    next_model: str = ""
    next_by: str = ""
    production: Pointer | None = None
    previous: Pointer | None = None
    previous_model: str = ""
    keep_until: datetime | None = None
    taken_back: tuple[str, ...] = ()
    on_trial: str = ""
    pause: PauseRequest | None = None
    approvals: tuple[StepApproval, ...] = ()
    way_back: WayBack | None = None
    guarded_at: float | None = None

    def admits(self, model_id: str) -> bool:
        """Whether releases of a model may be put there."""
        return model_id in (self.model_id, self.next_model) or not self.model_id

    @property
    def way_back_to(self) -> Pointer | None:
        """What a rollback of production restores: never another model."""
        return self.previous if self.previous_model == self.model_id else None

    def of(self, model_id: str) -> PlaceState:
        """As one model sees it: what serves, or was left, is its own, or nothing."""
        if model_id == self.model_id:
            return self.model_copy(update={"previous": self.way_back_to})
        left = self.previous if self.previous_model == model_id else None
        return PlaceState(previous=left, previous_model=model_id)

    def taking_back(self, release_id: str) -> PlaceState:
        """With a release noted as rolled back; writing it fences a run that is about to promote it."""
        others = [one for one in self.taken_back if one != release_id]
        return self.model_copy(update={"taken_back": (*others, release_id)[-_MOST_TAKEN_BACK:]})

    def approval(self, release_id: str, percent: float) -> StepApproval | None:
        """The question about a step; None if it was neither put nor answered."""
        mine = (one for one in self.approvals if (one.release_id, one.percent) == (release_id, percent))
        return next(mine, None)

    def with_approval(self, approval: StepApproval) -> PlaceState:
        """With a question as it stands now."""
        about = (approval.release_id, approval.percent)
        others = [one for one in self.approvals if (one.release_id, one.percent) != about]
        return self.model_copy(update={"approvals": (*others, approval)[-_MOST_APPROVALS:]})

    def __str__(self) -> str:
        if not self.model_id:
            return "free"
        since = f" since {self.since:%Y-%m-%d %H:%M} UTC" if self.since else ""
        later = f", handed over to {self.next_model}" if self.next_model else ""
        return f"held by {self.model_id}{since}{later}"


def place_name(place: str) -> str:
    """Name of a place's document."""
    return f"places/{place}.json"


def read_place(store: ArtifactStore, place: str) -> PlaceState:
    """A place as it stands; an empty one before its first release.

    Raises:
        IntegrityError: The document is damaged.
        Transient: It cannot be read.
    """
    return store.read_as(place_name(place), PlaceState)[0] or PlaceState()


def edit_place(store: ArtifactStore, place: str, edit: Callable[[PlaceState], PlaceState]) -> PlaceState:
    """Change a place's document; `edit` is asked again if somebody else changed it meanwhile.

    An edit that only the holder of the place's lease may make confirms the lease itself: what it returns is written
    only if nobody has written since.

    Returns:
        The place as it stands then.

    Raises:
        Conflict: Others change it all the time; the same call is safe again.
        IntegrityError: The document is damaged.
        Transient: The store cannot be read, or takes nothing.
    """
    return store.edit_as(place_name(place), PlaceState, edit)


def readable_places(store: ArtifactStore) -> tuple[dict[str, PlaceState], list[DamagedDocument]]:
    """All places that can be read, by name, and the documents that cannot.

    Raises:
        Transient: The documents cannot even be listed.
    """
    return store.readable_as("places", PlaceState)


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
