"""How a canary's controller changes traffic and record: each change is recorded before and after it is made.

While the store accepts no writes, users come first and changes are recorded afterwards. A candidate with traffic keeps
its share while it is watched and healthy, but gets no more; if it fails, the router takes its traffic away before that
can be recorded. If the candidate has no traffic there is nothing to guard: the stage fails, and its next attempt
continues.
"""

from __future__ import annotations

import os
import socket
import time

from llm_pipeline.base.errors import ConfigError, Fenced, PipelineError, Transient
from llm_pipeline.base.host_time import HostTime
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.verdict import Judgement
from llm_pipeline.canary import analysis, evidence
from llm_pipeline.canary import judgements as findings
from llm_pipeline.canary.analysis import AnalysisState
from llm_pipeline.canary.approvals import Questions
from llm_pipeline.canary.events import EventKind
from llm_pipeline.canary.moving import NoWayBack, Site
from llm_pipeline.canary.pause_request import PauseRequest
from llm_pipeline.canary.plan import CanaryPlan
from llm_pipeline.canary.record import CanaryJournal, CanaryRecord, Pause, PauseReason, Phase
from llm_pipeline.canary.rollback import UNRECORDED, give_back, move_unrecorded
from llm_pipeline.canary.router import (
    ALL,
    RouterConflict,
    RouterUnavailable,
    RouteState,
    SlotName,
    TrafficRouter,
    all_to,
    other_slot,
)
from llm_pipeline.canary.slots import ChecksAnswers, SlotControl
from llm_pipeline.canary.traffic import Traffic
from llm_pipeline.serving.slot_fence import FencingToken
from llm_pipeline.store.lease import Lease, LeaseHeld, LeaseLost

log = get_logger(__name__)

NOT_THE_STORE = (LeaseHeld, LeaseLost, NoWayBack, RouterConflict, RouterUnavailable)
"""Transient errors that do not come from the store."""

LONGEST_LOOKS = 10.0
"""One look counts for at most this many intervals between looks: a frozen process watched nothing meanwhile."""

JUMP_SECONDS = 2.0
"""How far the wall clock may fall behind the monotonic one before that is treated as a jump."""


class WatchClock:
    """How long a step was watched, whatever the wall clock does.

    A wall clock may jump, forwards over a whole bake or backwards to before the step began. So only differences of this
    process's monotonic clock count, bounded look by look; their sum is kept in the canary's record.
    """

    def __init__(self) -> None:
        self._last: float | None = None

    def start(self) -> None:
        """The first look is timed from now on."""
        self._last = time.monotonic()

    def look(self, look_seconds: float) -> float:
        """Seconds watched since the last look; a process that continues another one's step counts one interval."""
        now, last = time.monotonic(), self._last
        self._last = now
        return look_seconds if last is None else min(now - last, LONGEST_LOOKS * look_seconds)

    def began(self, step_began_at: float, watched_seconds: float) -> float:
        """When the step began, by the wall clock as it is now: requests are stamped with that one.

        A clock that jumped backwards would make every request look older than the step, and so leave even the
        immediate guard without data.
        """
        latest = time.time() - watched_seconds
        if latest >= step_began_at - JUMP_SECONDS:
            return step_began_at
        log.warning("the clock jumped backwards", seconds=round(step_began_at - latest, 1))
        return latest


class ControllerCore:
    """What every part of the controller does to a canary; see `controller` for the phases."""

    def __init__(
        self,
        plan: CanaryPlan,
        *,
        journal: CanaryJournal,
        lease: Lease,
        router: TrafficRouter,
        traffic: Traffic,
        slots: SlotControl,
    ) -> None:
        self._plan = plan
        self._policy = plan.policy
        self._journal = journal
        self._lease = lease
        self._router = router
        self._traffic = traffic
        self._questions = Questions(journal.store, plan)
        self._slots = slots
        self._site = Site(router, slots, plan.patience)
        self._owner = f"{plan.release_id}@{socket.gethostname()}.{os.getpid()}"
        self._epoch = lease.epoch
        self._clock = WatchClock()
        self._blind_since: float | None = None
        self._paused: PauseRequest | None = None
        self._held: CanaryRecord | None = None

    @property
    def _token(self) -> FencingToken:
        """The token that this controller shows to the slots."""
        return FencingToken(self._epoch, self._lease.epoch)

    def _with_router(self, record: CanaryRecord) -> CanaryRecord:
        """Start the router again if it has ended, in every phase: without it every user is refused."""
        try:
            done = self._router.revive()
        except PipelineError as error:
            log.error("the router has ended and does not start", reason=str(error))  # noqa: TRY400 - nothing to trace
            return record
        if done is None:
            return record
        log.warning(done, percent=record.step_percent)
        return record.with_event(EventKind.REVIVED, done, by=self._owner)

    def _begin_step(self, record: CanaryRecord, percent: float, tests: AnalysisState) -> CanaryRecord:
        want = self._state(record.candidate, self._policy.share_at(percent), on_trial=True)
        step = analysis.begin_step(tests, want.weights[record.candidate] / ALL)
        begun = {"step_percent": percent, "step_began_at": 0.0, "watched_seconds": 0.0, "pause": None}
        return self._save(record, phase=Phase.SHIFTING, analysis=step, **begun)

    def _pass(self, record: CanaryRecord, judgement: Judgement) -> CanaryRecord:
        if isinstance(self._slots, ChecksAnswers):
            differs = self._slots.differs(record.candidate, record.repository)
            if differs is not None:
                return self._condemn(record, findings.another_model(f"{record.step_percent:g} %", differs))
        if record.step_percent < 100.0:  # noqa: PLR2004
            record = record.with_event(EventKind.PASSED, judgement.summary, by=self._owner, verdict=judgement.verdict)
            passed = {"passed_percent": record.step_percent, "pause": None}
            return self._save(record, phase=Phase.PASSED, judgement=judgement, **passed)
        if (drift := self._drift(record, self._router.read()[0])) is not None:
            return self._drifted(record, drift)
        record = record.marked("promoted", share=record.share_percent / 100)  # until it is settled stable keeps its own
        record = record.with_event(EventKind.PROMOTED, judgement.summary, by=self._owner, verdict=judgement.verdict)
        return self._save(record, phase=Phase.PROMOTED, judgement=judgement, passed_percent=100.0, pause=None)

    def _drift(self, record: CanaryRecord, current: RouteState) -> Judgement | None:
        """Why the router is in a state that no controller wrote; None if it is not.

        Raises:
            Fenced: A newer owner wrote it.
        """
        if current.epoch > self._epoch:
            raise Fenced(f"{current.owner} moved the traffic with epoch {current.epoch}", where=record.release_id)
        known = [state for state in (record.intended, record.applied) if state is not None]
        if record.applied is None:
            known.append(all_to(record.stable or record.candidate, owner=self._owner, epoch=self._epoch))
        return findings.changed_from_outside(current, known)

    def _drifted(self, record: CanaryRecord, judgement: Judgement) -> CanaryRecord:
        if self._router.read()[0].owner.startswith(UNRECORDED):  # by the guard, while the store accepted no writes
            return self._condemn(record, findings.taken_back(record.phase.value, record.step_percent))
        return self._pause(record, judgement, PauseReason.CHANGED_OUTSIDE)

    def _pause(
        self, record: CanaryRecord, judgement: Judgement, reason: PauseReason, percent: float | None = None
    ) -> CanaryRecord:
        """Keep the weights and wait for a person; where only an answer ends it, the question is put first."""
        about = record.step_percent if percent is None else percent
        deadline = self._policy.pause_deadline_seconds
        now = HostTime.now()
        pause = Pause(reason=reason, percent=about, since=now.wall, began=now, deadline_seconds=deadline)
        record = record.model_copy(update={"judgement": judgement})
        if pause.asks and reason is not PauseReason.APPROVAL:
            self._questions.ask(record, about, reason, anew=True)
        log.warning(judgement.summary, percent=record.step_percent, reason=reason.value)
        kind = EventKind.APPROVAL_ASKED if reason is PauseReason.APPROVAL else EventKind.PAUSED
        record = record.with_event(kind, judgement.summary, by=self._owner, verdict=judgement.verdict)
        marked = record.marked("paused", share=record.share_percent / 100)
        return self._save(marked, phase=Phase.PAUSED, pause=pause)

    def _condemn(self, record: CanaryRecord, judgement: Judgement) -> CanaryRecord:
        """Decide to roll back.

        Raises:
            Transient: The store takes nothing; all traffic is on stable, if that answers.
        """
        log.warning(f"rolling back: {judgement.summary}", percent=record.step_percent)
        marked = record.marked(f"rolling back: {judgement.summary}", share=record.step_percent / 100)
        told = marked.with_event(EventKind.ROLLING_BACK, judgement.summary, by=self._owner, verdict=judgement.verdict)
        try:
            return self._save(told, phase=Phase.ROLLING_BACK, judgement=judgement, pause=None)
        except Transient:  # the store is down: move the users first; the next controller reads the router
            move_unrecorded(self._site, record.release_id, record)
            raise

    def _roll_back(self, record: CanaryRecord) -> CanaryRecord:
        want = self._state(record.stable or record.candidate, 1.0, on_trial=False)
        back = give_back(record, want, self._site, token=self._token, by=self._owner)
        return self._save(back, phase=Phase.ROLLED_BACK)

    def _state(self, slot: SlotName, share: float, *, on_trial: bool, standby: SlotName | None = None) -> RouteState:
        mine = round(share * ALL)
        weights = {slot: mine} if mine == ALL else {slot: mine, other_slot(slot): ALL - mine}
        candidate = slot if on_trial else None
        wanted = RouteState(
            weights=weights,
            candidate=candidate,
            standby=standby,
            sticky_header=self._policy.session_header if on_trial else None,
            owner=self._owner,
            epoch=self._epoch,
        )
        return self._router.nearest(wanted)

    def _save(self, record: CanaryRecord, **changes: object) -> CanaryRecord:
        heard = {"epoch": self._epoch, "heard_at": time.time()}
        return self._journal.save(record.model_copy(update={**changes, **heard}))

    def _hold(self, record: CanaryRecord, refused: Transient, *, watched: bool) -> CanaryRecord:
        """Keep watching while the store refuses writes; returns the record as it was, for the next try.

        Args:
            record: As it was before.
            refused: What the store said.
            watched: The next try looks at the candidate itself.

        Raises:
            Transient: As `refused`: the candidate has no traffic, or none any more.
        """
        state = self._router.read()[0]
        ours = state.candidate == record.candidate and not state.owner.startswith(UNRECORDED)
        if not ours or not state.weights.get(record.candidate):
            raise refused
        log.warning("the store accepts no writes: still watching the candidate", reason=str(refused))
        if watched:
            return record
        time.sleep(self._policy.look_seconds)
        fails = self._fails_meanwhile(record)
        if fails is not None or record.phase is Phase.ROLLING_BACK:
            log.warning("rolling back without a record", reason=fails.summary if fails else "its rollback was begun")
            if move_unrecorded(self._site, record.release_id, record):
                raise refused
        return record

    def _fails_meanwhile(self, record: CanaryRecord) -> Judgement | None:
        """The immediate guard between looks, for a candidate with traffic; what it reads is kept in memory."""
        if not self._slots.alive(record.candidate):
            return findings.server_ended(f"{record.share_percent:g} %")
        held = self._held if self._held is not None and self._held.phase is record.phase else record
        try:
            seen, held = self._traffic.look(held, tests_of(held).thresholds)
        except Transient as error:
            log.warning("the source of metrics is down", reason=str(error))
            return None
        self._held = held.model_copy(update={"analysis": analysis.observe(tests_of(held), seen)})
        step = tests_of(self._held).step
        if step is None or evidence.stable_is_bad(step):
            return None
        fact = evidence.guard(step, self._policy)
        return findings.fails_unrecorded(f"{record.share_percent:g} %", fact) if fact is not None else None

    def _save_later(self, record: CanaryRecord, **changes: object) -> CanaryRecord:
        """Save what the router has confirmed; if the store accepts no writes, the next accepted record has it."""
        try:
            return self._save(record, **changes)
        except Transient as error:
            log.warning("the store accepts no writes: the router's changes are recorded later", reason=str(error))
            return record.model_copy(update=changes)


def tests_of(record: CanaryRecord) -> AnalysisState:
    """The analysis of a canary that has begun to be compared.

    Raises:
        ConfigError: It has not.
    """
    if record.analysis is None:
        raise ConfigError(f"the canary is {record.phase} without an analysis", where=record.release_id)
    return record.analysis
