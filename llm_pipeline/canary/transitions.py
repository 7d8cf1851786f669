"""How one canary changes: its traffic and its record, each change recorded before and after it is made."""

from __future__ import annotations

import os
import socket
import time

from llm_pipeline.base.errors import ConfigError, Fenced, PipelineError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.verdict import Judgement
from llm_pipeline.canary import analysis
from llm_pipeline.canary import judgements as findings
from llm_pipeline.canary.analysis import AnalysisState
from llm_pipeline.canary.events import EventKind
from llm_pipeline.canary.pause_request import PauseRequest
from llm_pipeline.canary.plan import CanaryPlan
from llm_pipeline.canary.questions import Questions
from llm_pipeline.canary.record import (
    CanaryJournal,
    CanaryRecord,
    Pause,
    PauseReason,
    Phase,
)
from llm_pipeline.canary.rollback import UNRECORDED, give_back, move_unrecorded
from llm_pipeline.canary.router import (
    ALL,
    RouteState,
    SlotName,
    TrafficRouter,
    all_to,
    other_slot,
)
from llm_pipeline.canary.shadow import Shadow
from llm_pipeline.canary.slots import SlotControl
from llm_pipeline.canary.traffic import Traffic
from llm_pipeline.canary.watch_clock import WatchClock
from llm_pipeline.serving.slot_fence import FencingToken
from llm_pipeline.store.lease import Lease

log = get_logger(__name__)


class Transitions:
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
        shadow: Shadow | None = None,
    ) -> None:
        self._plan = plan
        self._policy = plan.policy
        self._journal = journal
        self._lease = lease
        self._router = router
        self._traffic = traffic
        self._questions = Questions(journal.store, plan)
        self._slots = slots
        self._shadow = shadow
        self._owner = f"{plan.release_id}@{socket.gethostname()}.{os.getpid()}"
        self._epoch = lease.epoch
        self._clock = WatchClock()
        self._blind_since: float | None = None
        self._paused: PauseRequest | None = None

    @property
    def _token(self) -> FencingToken:
        """What the slots know this controller by."""
        return FencingToken(self._epoch, self._lease.epoch)

    def _with_router(self, record: CanaryRecord) -> CanaryRecord:
        """Start the router again if it has ended, wherever the canary stands: without one every user is refused."""
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
        """Why the router is in a state that none of our processes wrote; None if it is not.

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
        pause = Pause(reason=reason, percent=about, since=time.time(), deadline_seconds=deadline)
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
        except Transient:  # the store: users first, and whoever comes next finds what the router was told
            move_unrecorded(self._router, self._slots, record.release_id, self._plan.patience, record)
            raise

    def _roll_back(self, record: CanaryRecord) -> CanaryRecord:
        want = self._state(record.stable or record.candidate, 1.0, on_trial=False)
        back = give_back(
            record,
            want,
            self._router,
            self._slots,
            self._plan.patience,
            token=self._token,
            by=self._owner,
        )
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


def tests_of(record: CanaryRecord) -> AnalysisState:
    """The analysis of a canary that has begun to be compared.

    Raises:
        ConfigError: It has not.
    """
    if record.analysis is None:
        raise ConfigError(f"the canary is {record.phase} without an analysis", where=record.release_id)
    return record.analysis
