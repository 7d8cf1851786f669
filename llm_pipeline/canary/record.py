"""The durable state of one canary: what was planned, where it stands, and what happened.

It is one document in the store, changed only by compare-and-swap. Its events are written together with the change that
each tells of: a controller killed anywhere leaves neither without the other. Within one run the record stands: a retry,
or a controller after a crash, returns the judgement that was made; the next run tries a canary again that has ended.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from pydantic import Field

from llm_pipeline.base.errors import Fenced
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.base.waiting import wait_until
from llm_pipeline.canary.access_log import LogCursor
from llm_pipeline.canary.analysis import AnalysisState, Look
from llm_pipeline.canary.metrics import Hanging
from llm_pipeline.canary.router import Patience, RouteState, SlotName, other_slot
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict
from llm_pipeline.store.lease import lease_of
from llm_pipeline.store.place_state import PauseRequest, PlaceState, Pointer, Question, read_place

_POLL_SECONDS = 0.1
MOST_EVENTS = 200
"""A record keeps this many of the newest events."""

LONGEST_SUMMARY = 500


class EventKind(StrEnum):
    """What an event is about."""

    STARTED = "started"
    SHIFTED = "shifted"
    PASSED = "step passed"
    PAUSED = "paused"
    PAUSED_BY_PERSON = "paused by a person"
    RESUMED = "resumed"
    APPROVAL_ASKED = "approval asked"
    APPROVED = "approved"
    DENIED = "denied"
    PROMOTED = "promoted"
    ROLLING_BACK = "rolling back"
    ROLLED_BACK = "rolled back"
    REVIVED = "router revived"


class CanaryEvent(Frozen):
    """One thing that happened to a canary.

    Attributes:
        number: Counts the canary's events from 1, over all attempts: a reader remembers the last one it has seen.
        at: Seconds since 1970, by the clock of whoever wrote it.
        kind: What it is about.
        percent: The candidate's share of the traffic then, in percent.
        summary: What happened, in one sentence.
        by: Who did it: a controller, the guard, or a person.
        verdict: What was decided; None where nothing was.
    """

    number: int
    at: float
    kind: EventKind
    percent: float
    summary: str
    by: str
    verdict: Verdict | None = None


log = get_logger(__name__)

LEASE_SECONDS = 10.0
"""A place's lease expires when its holder has not renewed it for this long."""


class Phase(StrEnum):
    """Where a canary stands."""

    PENDING = "pending"
    WARM = "warm"
    SHIFTING = "shifting"
    BAKING = "baking"
    PASSED = "passed"
    PAUSED = "paused"
    PROMOTED = "promoted"
    ROLLING_BACK = "rolling back"
    ROLLED_BACK = "rolled back"


class PauseReason(StrEnum):
    """Why a canary waits."""

    CHANGED_OUTSIDE = "changed from outside"
    WRONG_SPLIT = "wrong split"
    NO_SOURCE = "no source of metrics"
    UNDECIDED = "undecided"
    APPROVAL = "approval"


class Pause(Frozen):
    """A canary that keeps its weights and waits for a person.

    Attributes:
        percent: The step that the question is about.
        since: Seconds since 1970.
        deadline_seconds: How long it may wait before it is rolled back.
    """

    reason: PauseReason
    percent: float
    since: float
    deadline_seconds: float

    @property
    def asks(self) -> bool:
        """Whether only a person's answer ends it; other pauses end when their cause is gone."""
        return self.reason in (PauseReason.UNDECIDED, PauseReason.APPROVAL)

    @property
    def question(self) -> Question:
        """What a person is asked."""
        return "begin" if self.reason is PauseReason.APPROVAL else "go on"

    def over(self, now: float) -> bool:
        """Whether it has lasted too long."""
        return now - self.since > self.deadline_seconds


class CanaryRecord(Frozen):
    """One canary as stored. Times are seconds since 1970.

    Attributes:
        run: The run of the release that drove it last; empty if unknown.
        began_run: The run that began it.
        repository: The candidate's model repository.
        stable: The slot that served when the canary began; None for the first deployment on a target.
        stable_repository: What serves there, so that it can be restarted; None in records that do not say.
        candidate: The slot that the candidate was started in.
        production_since: When the pointers had been moved last as the canary began; None for the first deployment.
        candidate_started: The candidate's slot was changed; until then a rollback must not touch it.
        step_percent: The step in force; 0 before the first.
        passed_percent: The highest step that passed.
        step_began_at: When the step's weights were in force.
        watched_seconds: How long the step in force was watched, by the controllers' monotonic clocks: the wall clock
            may jump, and unwatched time is no bake. Before the first step: how long traffic was waited for.
        pause: Why it waits, while it is paused.
        pause_request: A person's pause that its controller obeys now: the phase stays, and the controller watches on.
        policy: Of the run that drove it last; the guard goes by it, too.
        cursor: How far the access log is analysed; written together with the analysis, so nothing counts twice.
        in_flight: Requests of the step that had not ended there; written with it.
        metrics_cursor: Until when a source of counts was read, where there is no log; None when a step has just begun.
        intended: What the router is about to be told; recorded before it is told.
        applied: What the router confirmed last.
        judgement: Of the latest look at the step in force, or the final one.
        epoch: Fencing epoch of the last writer.
        written_at: When it was written last: a living controller writes at each look.
        traffic_confirmed: After a rollback: whether the router acknowledged it.
        attempt: Earlier runs of the release had a canary here, too; this one's number.
        events: What happened, oldest first, over all attempts.
        looks: The e-values over time, oldest first.
    """

    release_id: str
    run: str = ""
    began_run: str = ""
    target: str
    repository: ArtifactRef
    stable: SlotName | None
    stable_repository: ArtifactRef | None = None
    candidate: SlotName
    production_since: datetime | None = None
    phase: Phase = Phase.PENDING
    candidate_started: bool = False
    step_percent: float = 0.0
    passed_percent: float = 0.0
    began_at: float
    step_began_at: float = 0.0
    watched_seconds: float = 0.0
    pause: Pause | None = None
    pause_request: PauseRequest | None = None
    policy: CanaryPolicy = CanaryPolicy()
    cursor: LogCursor = LogCursor()
    in_flight: dict[str, Hanging] = Field(default_factory=dict)
    metrics_cursor: float | None = None
    intended: RouteState | None = None
    applied: RouteState | None = None
    analysis: AnalysisState | None = None
    judgement: Judgement | None = None
    epoch: int = 0
    written_at: float = 0.0
    traffic_confirmed: bool | None = None
    attempt: int = 1
    events: tuple[CanaryEvent, ...] = ()
    looks: tuple[Look, ...] = ()

    @property
    def settled(self) -> bool:
        """Whether nothing is left to be done: promoted, or all traffic is on stable."""
        return self.phase in (Phase.PROMOTED, Phase.ROLLED_BACK)

    @property
    def decided(self) -> bool:
        """Whether nothing that a person says can change how it ends."""
        return self.settled or self.phase is Phase.ROLLING_BACK

    @property
    def share_percent(self) -> float:
        """The candidate's intended share of the traffic, in percent."""
        told = self.intended or self.applied
        return told.weights.get(self.candidate, 0) / 100 if told else 0.0

    def with_event(
        self, kind: EventKind, summary: str, *, by: str, verdict: Verdict | None = None, percent: float | None = None
    ) -> CanaryRecord:
        """The record with one more event, at the step in force if no other share is given."""
        event = CanaryEvent(
            number=self.events[-1].number + 1 if self.events else 1,
            at=time.time(),
            kind=kind,
            percent=self.step_percent if percent is None else percent,
            summary=summary[:LONGEST_SUMMARY],
            by=by,
            verdict=verdict,
        )
        return self.model_copy(update={"events": (*self.events, event)[-MOST_EVENTS:]})


class CanaryJournal:
    """Reads and writes one canary's record as one owner; a write that finds another owner's is fenced."""

    def __init__(self, store: ArtifactStore, release_id: str, target: str) -> None:
        self.store = store
        self._name = canary_record_name(release_id, target)
        self._revision: str | None = None

    def load(self) -> CanaryRecord | None:
        """The record as it is now; later writes expect this revision."""
        record, self._revision = self.store.read_as(self._name, CanaryRecord)
        return record

    def save(self, record: CanaryRecord) -> CanaryRecord:
        """Write the record.

        Raises:
            Fenced: Somebody else wrote it since this journal last did.
        """
        record = record.model_copy(update={"written_at": time.time()})
        try:
            self._revision = self.store.write_document(self._name, record.model_dump(mode="json"), self._revision)
        except Conflict as error:
            raise Fenced("another controller took over this canary", where=self._name) from error
        return record


def canary_record_name(release_id: str, target: str) -> str:
    """Name of a canary's document."""
    return f"releases/{release_id}/canary-{target}.json"


def latest_canary(store: ArtifactStore, target: str) -> CanaryRecord | None:
    """The record of the canary that was on trial last on a target, or still is; None before the first."""
    release_id = read_place(store, target).on_trial
    return read_canary_record(store, release_id, target) if release_id else None


def lease_name(target: str) -> str:
    """Document of the lease that a target's controller holds; one per target, whatever the release."""
    return f"leases/canary-{target}.json"


def take_over(store: ArtifactStore, target: str) -> None:
    """End the current lease on the target's canary: its holder's next renewal finds a higher epoch. For rollbacks only.

    Raises:
        Conflict: The lease changed hands at this very moment; try again.
    """
    name = lease_name(target)
    if (document := store.read_document(name)) is not None:
        held = lease_of(document, name)
        released = held.model_copy(update={"epoch": held.epoch + 1, "expires_at": 0.0})
        store.write_document(name, released.model_dump(), document.revision)


def read_canary_record(store: ArtifactStore, release_id: str, target: str) -> CanaryRecord | None:
    """The record of a canary, for readers."""
    return CanaryJournal(store, release_id, target).load()


def utc(at: float) -> str:
    """Seconds since 1970 as people read them."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def standing_pause(state: PlaceState, record: CanaryRecord) -> str:
    """Why a canary does not go on now, and until when, for people; empty while it does."""
    asked, own = state.pause, record.pause
    if record.decided:
        return ""
    if asked is not None and asked.holds(record.began_at):
        by, why, since, seconds = f" by {asked.by}", asked.why, asked.since, asked.deadline_seconds
    elif record.phase is Phase.PAUSED and own is not None:
        by, why, since, seconds = "", own.reason.value, own.since, own.deadline_seconds
    else:
        return ""
    said = f" ({why})" if why else ""
    return f"paused{by} since {utc(since)}{said}; rolled back at {utc(since + seconds)} unless somebody acts"


def read_events(store: ArtifactStore, release_id: str, target: str, *, after: int = 0) -> tuple[CanaryEvent, ...]:
    """A canary's events, oldest first; none when it never began.

    Args:
        store: Where the canary's record is.
        release_id: The release on trial.
        target: The target's name.
        after: Only events with a higher number: the last one that the reader has seen.
    """
    record = read_canary_record(store, release_id, target)
    return tuple(event for event in record.events if event.number > after) if record else ()


@dataclass(frozen=True)
class CanaryPlan:
    """What to promote, over which production, and by which rules.

    Attributes:
        run: The run of the release that asks; another one may try a settled canary again, the same one may not.
        production: What serves now; None for the first deployment on the target.
    """

    release_id: str
    run: str
    target: str
    candidate: ArtifactRef
    production: Pointer | None
    policy: CanaryPolicy
    patience: Patience = field(default_factory=Patience)

    @property
    def driver(self) -> str:
        """Who drives it: this process, in events and routes."""
        return f"{self.release_id}@{socket.gethostname()}.{os.getpid()}"

    @property
    def production_since(self) -> datetime | None:
        """When the pointers moved last; it distinguishes one production from the next."""
        return self.production.promoted_at if self.production else None


def new_attempt(plan: CanaryPlan, earlier: CanaryRecord | None = None) -> CanaryRecord:
    """A canary that has done nothing yet; the events say how an earlier run's ended.

    Args:
        plan: What is to be promoted.
        earlier: The release's latest canary at the place.
    """
    production = plan.production
    return CanaryRecord(
        release_id=plan.release_id,
        run=plan.run,
        began_run=plan.run,
        target=plan.target,
        repository=plan.candidate,
        stable=production.slot if production else None,
        stable_repository=production.repository if production else None,
        candidate=other_slot(production.slot) if production else "blue",
        production_since=plan.production_since,
        policy=plan.policy,
        began_at=time.time(),
        epoch=earlier.epoch if earlier else 0,
        attempt=earlier.attempt + 1 if earlier else 1,
        events=earlier.events if earlier else (),
    )


def is_over(record: CanaryRecord, plan: CanaryPlan, traffic: Callable[[], RouteState]) -> bool:
    """Whether a canary belongs to an earlier run and has ended, so that this run may start a new one.

    A promotion whose traffic is in force and whose pointers nobody has moved yet is not over: its run ended between
    promotion and settlement, and this one settles it.

    Args:
        record: The canary as stored.
        plan: What this run wants.
        traffic: Reads the router.
    """
    if record.run == plan.run:
        return False
    if record.phase is not Phase.PROMOTED:
        return record.phase in (Phase.ROLLED_BACK, Phase.ROLLING_BACK)
    moved = record.production_since != plan.production_since
    return moved or record.applied is None or not record.applied.same_traffic(traffic())


def judged_by_others(
    store: ArtifactStore, release_id: str, target: str, *, wait_seconds: float = 10.0
) -> Judgement | None:
    """The judgement of a canary that was taken from its controller; None if nobody rolled it back.

    Args:
        store: Where the canary's record is.
        release_id: The release that was on trial.
        target: The target's name.
        wait_seconds: How long their record of it is waited for: they fence the controller first.
    """

    def judged() -> Judgement | None:
        record = read_canary_record(store, release_id, target)
        taken = record is not None and record.phase in (Phase.ROLLING_BACK, Phase.ROLLED_BACK)
        return record.judgement if record is not None and taken else None

    wait_until(lambda: judged() is not None, wait_seconds, every=_POLL_SECONDS)
    return judged()


def stated(
    verdict: Verdict, summary: str, name: str, detail: str = "", *, measured: float | None = None, samples: int = 0
) -> Judgement:
    """A judgement by one fact that needs no statistics; without a detail the summary says all."""
    fact = Evidence(name=name, verdict=verdict, measured=measured, samples=samples, detail=detail or summary)
    return judge(summary, [fact])


def all_ended(percent: float) -> Judgement:
    """All servers of the place had ended, as after a power cut: that says nothing about the candidate."""
    words = f"stable's server and the candidate's had both ended at {percent:g} %"
    detail = f"{words}: the host was restarted, or ended them"
    return stated(Verdict.INCONCLUSIVE, words, "servers of the place", detail, measured=percent)


def taken_back(phase: str, percent: float, by: str) -> Judgement:
    """The judgement of a canary that somebody rolled back before it ended; never GO."""
    detail = f"rolled back while {phase} at {percent:g} %: the candidate's judgement was not finished"
    return stated(Verdict.INCONCLUSIVE, f"rolled back at {percent:g} % by {by}", "canary", detail, measured=percent)
