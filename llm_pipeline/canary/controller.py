"""The canary of one release on one target: durable, fenced, level-triggered.

    PENDING -> WARM -> SHIFTING(k) -> BAKING(k) -> PASSED(k) -> ... -> PROMOTED
    any -> ROLLING_BACK -> ROLLED_BACK;  SHIFTING or BAKING -> PAUSED (hold) -> SHIFTING again
    PENDING, WARM, BAKING, PASSED: held while a person's pause stands (see `pause_request`)
    BAKING -> PAUSED (undecided, frozen) or PASSED -> PAUSED (approval) -> as a person answers (see `approvals`)
    PROMOTED or ROLLED_BACK by an earlier run of the release -> PENDING (see `plan`)

Each turn of the loop reads the record, does what its phase asks for, and records the next phase. Intent is
recorded before the router is told, and confirmation after, so a controller killed anywhere is continued by the
next one: same phase, same idempotent write, same tests. A controller that was taken over is fenced by its epoch, at
the router and at the record. While the store accepts no writes, a candidate with traffic is still watched
(`controller_core`). A router found in neither the intended nor the applied state was changed by another process: the
canary pauses and overwrites nothing.
"""

from __future__ import annotations

import time

from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.base.host_time import HostTime
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.verdict import Judgement, Verdict
from llm_pipeline.canary import analysis
from llm_pipeline.canary import judgements as findings
from llm_pipeline.canary.approvals import StepApproval
from llm_pipeline.canary.controller_core import NOT_THE_STORE, tests_of
from llm_pipeline.canary.controller_start import Starting
from llm_pipeline.canary.controller_steps import Watching
from llm_pipeline.canary.events import EventKind
from llm_pipeline.canary.moving import NoWayBack, epoch_above
from llm_pipeline.canary.pause_request import PauseRequest, read_pause
from llm_pipeline.canary.plan import first_attempt, is_over, next_attempt
from llm_pipeline.canary.record import (
    CanaryJournal,
    CanaryRecord,
    Pause,
    PauseReason,
    Phase,
    current_canary,
    set_current_canary,
)
from llm_pipeline.canary.rollback import LEFT_UNRECORDED, UNRECORDED, end_canary, move_unrecorded, router_epoch
from llm_pipeline.canary.router import RouterUnavailable

log = get_logger(__name__)

_PAUSABLE = frozenset({Phase.PENDING, Phase.WARM, Phase.BAKING, Phase.PASSED})


class CanaryController(Starting, Watching):
    """Drives a canary's record, one step at a time; holds the target's lease while it does."""

    def run_step(self, percent: float) -> Judgement:
        """Bring the canary to the end of one step, from wherever it stands.

        A canary that an earlier run of the release brought to its end begins anew; one of this run stays judged.

        Returns:
            The step's judgement: GO when it passed; NO_GO when the candidate regressed (and is rolled back);
            INCONCLUSIVE or ANOMALOUS when it was paused.

        Raises:
            Fenced: Another controller took over.
            ConfigError: The step is not the next one of the policy.
        """
        record = self._adopt_or_hold(percent)
        while True:
            self._lease.check()
            if (judgement := _finished(record, percent)) is not None:
                return judgement
            record = self._turn_or_hold(self._with_router(record), percent)

    def _turn_or_hold(self, record: CanaryRecord, percent: float) -> CanaryRecord:
        try:
            return self._turn(record, percent)
        except NOT_THE_STORE:
            raise
        except Transient as error:
            return self._hold(record, error, watched=record.phase is Phase.BAKING)

    def _adopt_or_hold(self, percent: float) -> CanaryRecord:
        while True:
            try:
                return self._adopt(percent)
            except NOT_THE_STORE:
                raise
            except Transient as error:
                if (found := self._journal.load()) is None or found.settled:
                    raise
                self._hold(found, error, watched=False)
                self._lease.check()

    def _turn(self, record: CanaryRecord, percent: float) -> CanaryRecord:
        """Do what the phase asks for, unless a person paused it; returns the record as saved."""
        if record.phase in _PAUSABLE:
            record = self._with_pause_request(record)
            if record.pause_request is not None:
                return self._stay(record, record.pause_request)
        return self._advance(record, percent)

    def _advance(self, record: CanaryRecord, percent: float) -> CanaryRecord:
        match record.phase:
            case Phase.PENDING:
                approved = self._with_approval(record, percent)
                return self._start_candidate(approved) if approved.phase is Phase.PENDING else approved
            case Phase.WARM:
                return self._warm_up(record, percent)
            case Phase.PASSED:
                approved = self._with_approval(record, percent)
                passed = approved.phase is Phase.PASSED
                return self._begin_step(approved, percent, tests_of(record)) if passed else approved
            case Phase.SHIFTING:
                return self._shift(record)
            case Phase.BAKING:
                return self._look(record)
            case Phase.ROLLING_BACK:
                return self._roll_back(record)
            case _:
                raise ConfigError(f"the canary is {record.phase}", where=record.release_id)

    def _with_pause_request(self, record: CanaryRecord) -> CanaryRecord:
        """The record with a person's pause as it stands, and with the events of its beginning and its end."""
        known, found = record.pause_request, self._pause_request()
        holds = found is not None and found.holds(record.began_at)
        wanted = found.seen_by(HostTime.now(), known) if found is not None and holds else None
        if wanted == known:
            return record
        if wanted is None:
            by = found.resumed_by if found is not None else self._owner
            words, kind, label = f"{by} resumed it", EventKind.RESUMED, "resumed"
        else:
            by, words = wanted.by, wanted.words()
            kind, label = EventKind.PAUSED_BY_PERSON, "paused by a person"
        log.warning(words, percent=record.step_percent)
        record = record.with_event(kind, words, by=by).marked(label, share=record.share_percent / 100)
        return self._save(record, pause_request=wanted)

    def _pause_request(self) -> PauseRequest | None:
        """The request as stored; while the store cannot be read, as it was read last: an outage resumes nothing."""
        try:
            self._paused = read_pause(self._journal.store, self._plan.release_id, self._plan.target)
        except Transient as error:
            log.warning("cannot read whether a person paused or resumed it", reason=str(error))
        return self._paused

    def _stay(self, record: CanaryRecord, paused: PauseRequest) -> CanaryRecord:
        """Keep the split, and go on watching a candidate that has traffic."""
        if paused.over(HostTime.now()):
            return self._condemn(
                record, findings.nobody_resumed(paused.by, record.share_percent, paused.deadline_seconds)
            )
        if record.phase in (Phase.BAKING, Phase.PASSED) and record.analysis is not None:
            return self._look(record)
        self._keep_stable_behind(record)
        time.sleep(self._policy.look_seconds)
        return self._save(record)

    def _adopt(self, percent: float) -> CanaryRecord:
        """Load the record, or make it; writing it with our epoch fences whoever wrote it before."""
        self._lease.confirm()
        self._end_older_release()
        record = self._journal.load() or first_attempt(self._plan, self._traffic.end())
        seen = (record.epoch, router_epoch(self._router), self._slots.newest().epoch)
        self._epoch = epoch_above(self._lease.epoch, *seen)
        self._lease.confirm()  # the next holder reads an epoch at least as high, and goes above ours
        if is_over(record, self._plan, lambda: self._router.read()[0]):
            record = self._try_again(record)
        self._check_order(record, percent)
        record = record.model_copy(update={"run": self._plan.run})
        if not record.settled:
            self._claim_routes()
            set_current_canary(self._journal.store, self._plan.target, self._plan.release_id)
        return self._resume(record) if record.phase is Phase.PAUSED else self._save(record)

    def _claim_routes(self) -> None:
        """Rewrite the current routes with our epoch: an earlier controller can no longer write any.

        A note of somebody who moved the traffic while the store accepted no writes stays until it has been read.
        """
        try:
            state, revision = self._router.read()
            if state.epoch < self._epoch and not state.owner.startswith((UNRECORDED, LEFT_UNRECORDED)):
                claimed = state.model_copy(update={"owner": self._owner, "epoch": self._epoch})
                self._router.write(claimed, revision)
        except RouterUnavailable as error:
            log.warning("the routes cannot be claimed", reason=str(error))

    def _end_older_release(self) -> None:
        """Another release's canary on this target is rolled back first, however its controller ended."""
        store, target = self._journal.store, self._plan.target
        other = current_canary(store, target)
        if other is None or other == self._plan.release_id:
            return
        journal = CanaryJournal(store, other, target)
        if (record := journal.load()) is None or record.settled:
            return
        log.warning("rolling back another release", release=other, phase=record.phase.value)
        reason = findings.superseded(self._plan.release_id)
        try:
            end_canary(journal, self._site, lease=self._lease, by=self._owner, reason=reason)
        except NoWayBack:
            raise
        except Transient:
            move_unrecorded(self._site, other, record)
            raise

    def _resume(self, record: CanaryRecord) -> CanaryRecord:
        """Continue after a pause whose reason has gone or was answered."""
        pause = record.pause
        if pause is not None and pause.asks:
            return self._act_on_answer(record, pause)
        if pause is not None and pause.over(HostTime.now()):
            return self._condemn(record, findings.nobody_answered(pause.percent, pause.deadline_seconds))
        log.info("continuing after a pause", percent=record.step_percent)
        record = record.with_event(EventKind.RESUMED, "continuing after a pause", by=self._owner)
        if record.analysis is None:
            return self._save(record, phase=Phase.PENDING, pause=None)
        return self._begin_step(record, record.step_percent, tests_of(record))

    def _act_on_answer(self, record: CanaryRecord, pause: Pause) -> CanaryRecord:
        """Do what a person said; without an answer it stays paused until its deadline."""
        approval = self._questions.answer(record, pause)
        match approval.answer:
            case "waiting":
                return self._save(record)
            case "approved" if pause.reason is PauseReason.APPROVAL:
                return self._save(record, phase=Phase.PASSED if record.passed_percent else Phase.PENDING, pause=None)
            case "approved":
                return self._accept(record, approval, pause)
            case "denied" | "timed out":
                return self._refuse(record, approval)

    def _accept(self, record: CanaryRecord, approval: StepApproval, pause: Pause) -> CanaryRecord:
        """A person lets the step pass. Tests that showed a regression restart, or they would show it for ever."""
        tests = tests_of(record)
        requests = tests.step.candidate.requests if tests.step else 0
        if pause.reason is PauseReason.REGRESSED:
            record = record.model_copy(update={"analysis": analysis.begin(tests.thresholds, self._policy)})
        record = record.with_event(EventKind.APPROVED, f"go on after step {pause.percent:g} %", by=approval.by)
        return self._pass(record, findings.accepted(pause.percent, approval.by, requests))

    def _refuse(self, record: CanaryRecord, approval: StepApproval) -> CanaryRecord:
        if approval.answer == "timed out":
            return self._condemn(record, findings.nobody_answered(approval.percent, approval.deadline_seconds))
        words = f"denied: step {approval.percent:g} %"
        record = record.with_event(EventKind.DENIED, words, by=approval.by, verdict=Verdict.NO_GO)
        return self._condemn(record, findings.denied(approval.percent, approval.by))

    def _with_approval(self, record: CanaryRecord, percent: float) -> CanaryRecord:
        """The record, if the step may begin; otherwise it is paused, or rolled back by a denial."""
        if percent not in self._policy.approve_before_percent or record.stable is None:
            return record
        approval = self._questions.ask(record, percent, PauseReason.APPROVAL)
        match approval.answer:
            case "approved":
                return record.with_event(EventKind.APPROVED, f"step {percent:g} % may begin", by=approval.by)
            case "waiting":
                asked = findings.approval_asked(percent, self._questions.command(percent))
                return self._pause(record, asked, PauseReason.APPROVAL, percent)
            case "denied" | "timed out":
                return self._refuse(record, approval)

    def _try_again(self, record: CanaryRecord) -> CanaryRecord:
        """A fresh attempt, not yet saved; what an earlier run left half rolled back is rolled back first."""
        if record.phase is Phase.ROLLING_BACK:
            record = self._roll_back(record)
        log.info(
            "the canary of an earlier run is over: this run starts a new one",
            earlier=record.phase.value,
            run=self._plan.run,
        )
        return next_attempt(record, self._plan, self._traffic.end())

    def _check_order(self, record: CanaryRecord, percent: float) -> None:
        steps = self._policy.steps_percent
        allowed = [step for step in steps if step <= record.passed_percent]
        allowed += [step for step in steps if step > record.passed_percent][:1]
        if not record.settled and percent not in allowed:
            raise ConfigError(
                f"step {percent:g} % is not the next one",
                where=f"canary of {record.release_id}",
                hint=f"steps: {steps}",
            )


def _finished(record: CanaryRecord, percent: float) -> Judgement | None:
    """The judgement to return when the record has nothing left to do for this step."""
    passed = record.phase is Phase.PASSED and percent <= record.passed_percent
    return record.judgement if record.settled or record.phase is Phase.PAUSED or passed else None
