"""The canary of one release on one target: durable, fenced, level-triggered.

    PENDING -> WARM -> SHIFTING(k) -> BAKING(k) -> PASSED(k) -> ... -> PROMOTED
    any -> ROLLING_BACK -> ROLLED_BACK;  SHIFTING or BAKING -> PAUSED (hold) -> SHIFTING again
    BAKING -> PAUSED (undecided, frozen) or PASSED -> PAUSED (approval) -> as a person answers (see `approvals`)
    PROMOTED or ROLLED_BACK by an earlier run of the release -> PENDING (see `attempts`)

Each turn of the loop reads the record, does what its phase asks for, and records the next phase. Intent is
recorded before the router is told, and confirmation after, so a controller killed anywhere is continued by the
next one: same phase, same idempotent write, same tests. Whoever was taken over is stopped by its epoch, at the
router and at the record. A router found in neither the intended nor the applied state was changed by somebody
else: the canary pauses and overwrites nothing.
"""

from __future__ import annotations

import os
import socket
import time

from llm_pipeline.canary import analysis, attempts, evidence, findings
from llm_pipeline.canary.analysis import AnalysisState
from llm_pipeline.canary.approvals import StepApproval
from llm_pipeline.canary.decision import Decision, Outcome, decide
from llm_pipeline.canary.events import EventKind
from llm_pipeline.canary.looks import with_look
from llm_pipeline.canary.plan import CanaryPlan
from llm_pipeline.canary.questions import Questions
from llm_pipeline.canary.record import (
    CanaryJournal,
    CanaryRecord,
    Pause,
    PauseReason,
    Phase,
    set_current_canary,
)
from llm_pipeline.canary.rollback import end_older_release, retire, traffic_to, wait_converged, wait_usable
from llm_pipeline.canary.router import (
    ALL,
    Fenced,
    Mirror,
    RouterUnavailable,
    RouteState,
    SlotName,
    TrafficRouter,
    all_to,
    other_slot,
)
from llm_pipeline.canary.slots import SlotControl, WarmUp
from llm_pipeline.canary.step_table import format_step, step_in_numbers
from llm_pipeline.canary.traffic import Traffic
from llm_pipeline.canary.watch_clock import WatchClock
from llm_pipeline.errors import ConfigError, Transient
from llm_pipeline.logging import get_logger
from llm_pipeline.store.lease import Lease
from llm_pipeline.verdict import Judgement, Verdict

log = get_logger(__name__)

SOURCE_PATIENCE_LOOKS = 30
"""A source of metrics that is down for longer than so many looks pauses the canary."""

MIRRORED = "warmed up by copies"
MIRRORED_SHARE = ALL // 4
"""Basis points of stable's requests that are copied to a candidate that warms up: enough for its caches."""

_SETTLED = frozenset({Phase.PROMOTED, Phase.ROLLED_BACK})


class CanaryController:
    """Drives a canary's record, one step at a time; holds the target's lease while it does."""

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
        self._owner = f"{plan.release_id}@{socket.gethostname()}.{os.getpid()}"
        self._epoch = lease.epoch
        self._clock = WatchClock()
        self._blind_since: float | None = None

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
        record = self._adopt(percent)
        while True:
            self._lease.check()
            if (judgement := _finished(record, percent)) is not None:
                return judgement
            record = self._turn(record, percent)

    def _turn(self, record: CanaryRecord, percent: float) -> CanaryRecord:
        """Do what the phase asks for; returns the record as saved."""
        match record.phase:
            case Phase.PENDING:
                approved = self._with_approval(record, percent)
                return self._start_candidate(approved) if approved.phase is Phase.PENDING else approved
            case Phase.WARM:
                return self._warm_up(record, percent)
            case Phase.PASSED:
                approved = self._with_approval(record, percent)
                passed = approved.phase is Phase.PASSED
                return self._begin_step(approved, percent, _tests(record)) if passed else approved
            case Phase.SHIFTING:
                return self._shift(record)
            case Phase.BAKING:
                return self._look(record)
            case Phase.ROLLING_BACK:
                return self._roll_back(record)
            case _:
                raise ConfigError(f"the canary is {record.phase}", where=record.release_id)

    def _adopt(self, percent: float) -> CanaryRecord:
        """Load the record, or make it; writing it with our epoch fences whoever wrote it before."""
        self._end_older_release()
        record = self._journal.load() or attempts.first_attempt(self._plan, self._traffic.end())
        self._epoch = max(self._lease.epoch, record.epoch + 1, self._router_epoch() + 1)
        if attempts.is_over(record, self._plan, lambda: self._router.read()[0]):
            record = self._try_again(record)
        self._check_order(record, percent)
        record = record.model_copy(update={"run": self._plan.run})
        if not record.settled:
            set_current_canary(self._journal.store, self._plan.target, self._plan.release_id)
        return self._resume(record) if record.phase is Phase.PAUSED else self._save(record)

    def _end_older_release(self) -> None:
        """Another release's canary on this target is rolled back first, however its controller ended."""
        end_older_release(
            self._journal.store,
            self._plan.target,
            self._plan.release_id,
            router=self._router,
            slots=self._slots,
            patience=self._plan.patience,
            lease_epoch=self._lease.epoch,
            by=self._owner,
        )

    def _resume(self, record: CanaryRecord) -> CanaryRecord:
        """Go on after a pause, if what it waited for has come."""
        pause = record.pause
        if pause is not None and pause.asks:
            return self._act_on_answer(record, pause)
        if pause is not None and pause.over(time.time()):
            return self._condemn(record, findings.nobody_answered(pause.percent, pause.deadline_seconds))
        log.info("going on after a pause", percent=record.step_percent)
        record = record.with_event(EventKind.RESUMED, "going on after a pause", by=self._owner)
        if record.analysis is None:
            return self._save(record, phase=Phase.PENDING, pause=None)
        return self._begin_step(record, record.step_percent, _tests(record))

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
        """A person lets the step pass; tests that showed a regression begin anew, or they would show it for ever."""
        tests = _tests(record)
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
            "an earlier run's canary is over: this run tries again", earlier=record.phase.value, run=self._plan.run
        )
        return attempts.next_attempt(record, self._plan, self._traffic.end())

    def _router_epoch(self) -> int:
        try:
            return self._router.read()[0].epoch
        except RouterUnavailable:
            return 0

    def _check_order(self, record: CanaryRecord, percent: float) -> None:
        steps = self._policy.steps_percent
        allowed = [step for step in steps if step <= record.passed_percent]
        allowed += [step for step in steps if step > record.passed_percent][:1]
        if record.phase not in _SETTLED and percent not in allowed:
            raise ConfigError(
                f"step {percent:g} % is not the next one",
                where=f"canary of {record.release_id}",
                hint=f"steps: {steps}",
            )

    def _start_candidate(self, record: CanaryRecord) -> CanaryRecord:
        if self._plan.production is not None:
            self._slots.ensure(self._plan.production.slot, self._plan.production.repository)
            if (drift := self._drift(record, self._router.read()[0])) is not None:
                return self._drifted(record, drift)  # the idle slot may not be idle: nothing is started or stopped
        self._clock.start()
        record = self._save(record, candidate_started=True)
        self._slots.replace(record.candidate, record.repository)
        log.info("candidate started", slot=record.candidate, repository=str(record.repository))
        record = record.with_event(EventKind.STARTED, f"candidate started in {record.candidate}", by=self._owner)
        return self._save(record.marked("candidate started", share=0.0), phase=Phase.WARM)

    def _warm_up(self, record: CanaryRecord, percent: float) -> CanaryRecord:
        warm = self._slots.warm_up(record.candidate, record.repository)
        log.info("candidate warmed up", prompts=warm.prompts, answered=warm.answered, seconds=warm.seconds)
        if warm.answered == 0:
            return self._condemn(record, findings.answers_nothing(warm))
        if not wait_usable(self._router, record.candidate, self._plan.patience.usable):
            return self._condemn(record, findings.not_reached())
        if record.stable is None:
            return self._deploy_first(record, warm)
        return self._begin_tests(self._mirrored(record), percent)

    def _mirrored(self, record: CanaryRecord) -> CanaryRecord:
        """Warm the candidate up by copies of stable's requests, once, where policy and router offer it."""
        seconds = self._policy.warm_up_mirror_seconds
        if seconds == 0 or record.stable is None or any(mark.label == MIRRORED for mark in record.marks):
            return record
        alone = self._state(record.stable, 1.0, on_trial=False)
        mirror = Mirror(slot=record.candidate, share=MIRRORED_SHARE)
        want = self._router.nearest(alone.model_copy(update={"mirror": mirror}))
        if want.mirror is None:
            log.info("this router copies no requests: golden prompts warm the candidate up")
            return record
        record = self._save(record, intended=want)
        traffic_to(self._router, want, self._plan.patience)
        log.info("copies of requests warm the candidate up", seconds=seconds, slot=record.candidate)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._lease.check()
            time.sleep(min(self._policy.look_seconds, seconds))
        record = self._save(record, applied=want, intended=alone)
        traffic_to(self._router, alone, self._plan.patience)
        return self._save(record.marked(MIRRORED, share=0.0), applied=alone)

    def _deploy_first(self, record: CanaryRecord, warm: WarmUp) -> CanaryRecord:
        """Nothing serves yet, so there is nothing to compare with and no user to protect: all traffic at once."""
        want = self._state(record.candidate, 1.0, on_trial=False)
        record = self._save(record, intended=want)
        traffic_to(self._router, want, self._plan.patience)
        record = record.with_event(
            EventKind.PROMOTED, "first deployment: all traffic at once", by=self._owner, percent=100.0
        )
        return self._save(
            record.marked("first deployment", share=1.0),
            phase=Phase.PROMOTED,
            applied=want,
            passed_percent=100.0,
            judgement=findings.deployed_first(warm),
        )

    def _begin_tests(self, record: CanaryRecord, percent: float) -> CanaryRecord:
        """Wait for enough of stable's requests to say what slow means, then start the tests."""
        try:
            baseline = self._traffic.baseline(record, self._policy)
        except Transient as error:
            log.warning("the source of metrics is down", reason=str(error))
            return self._wait_for_traffic(record, 0)
        record, thresholds = baseline.record, baseline.thresholds
        if thresholds is None:
            return self._wait_for_traffic(record, baseline.requests)
        log.info(
            "slow is fixed from stable's requests",
            requests=thresholds.requests,
            first_token_milliseconds=thresholds.first_token_milliseconds,
            end_to_end_milliseconds=thresholds.end_to_end_milliseconds,
            not_compared=list(thresholds.left_out),
        )
        return self._begin_step(record, percent, analysis.begin(thresholds, self._policy))

    def _begin_step(self, record: CanaryRecord, percent: float, tests: AnalysisState) -> CanaryRecord:
        want = self._state(record.candidate, percent / 100, on_trial=True)
        step = analysis.begin_step(tests, want.weights[record.candidate] / ALL)
        begun = {"step_percent": percent, "step_began_at": 0.0, "watched_seconds": 0.0, "pause": None}
        return self._save(record, phase=Phase.SHIFTING, analysis=step, **begun)

    def _wait_for_traffic(self, record: CanaryRecord, seen: int) -> CanaryRecord:
        if record.watched_seconds > self._policy.maximum_bake_seconds:
            return self._condemn(record, findings.too_little_traffic(seen, self._policy.minimum_requests))
        time.sleep(self._policy.look_seconds)
        return self._save(record, watched_seconds=record.watched_seconds + self._clock.look(self._policy.look_seconds))

    def _shift(self, record: CanaryRecord) -> CanaryRecord:
        """Record the intent, tell the router, wait for its word, record that."""
        current, revision = self._router.read()
        if (drift := self._drift(record, current)) is not None:
            return self._drifted(record, drift)
        want = self._state(record.candidate, record.step_percent / 100, on_trial=True)
        record = self._save(record, intended=want)
        revision = self._router.write(want, revision)
        if not wait_converged(self._router, revision, self._plan.patience.confirm):
            return self._condemn(record, findings.not_acknowledged())
        log.info("traffic shifted", percent=record.step_percent, slot=record.candidate, revision=revision)
        now = time.time()
        resumed = record.applied is not None and record.applied.same_traffic(want) and record.step_began_at > 0
        self._clock.start()
        return self._save(
            record if resumed else self._traffic.step_begins(self._shifted(record)),
            phase=Phase.BAKING,
            applied=want,
            step_began_at=record.step_began_at if resumed else now,
        )

    def _shifted(self, record: CanaryRecord) -> CanaryRecord:
        percent = f"{record.step_percent:g} %"
        record = record.with_event(EventKind.SHIFTED, f"{percent} of the traffic to {record.candidate}", by=self._owner)
        return record.marked(percent, share=record.step_percent / 100)

    def _look(self, record: CanaryRecord) -> CanaryRecord:
        time.sleep(self._policy.look_seconds)
        current, _ = self._router.read()
        if (drift := self._drift(record, current)) is not None:
            return self._drifted(record, drift)
        elapsed = self._clock.look(self._policy.look_seconds)
        watched = record.watched_seconds + elapsed
        began = self._clock.began(record.step_began_at, watched)
        watching = record.model_copy(update={"watched_seconds": watched, "step_began_at": began})
        tests = _tests(record)
        try:
            seen, seeing = self._traffic.look(watching, tests.thresholds)
        except Transient as error:
            return self._without_source(record, error)
        self._blind_since = None
        tests = analysis.observe(tests, seen)
        looks = with_look(record.looks, tests, at=time.time(), percent=record.step_percent)
        record = seeing.model_copy(update={"analysis": tests, "looks": looks})
        return self._act_on(record, self._decide(record))

    def _without_source(self, record: CanaryRecord, error: Transient) -> CanaryRecord:
        """Nothing is concluded from silence; it is waited for, outside of the bake, and then the canary pauses."""
        log.warning("the source of metrics is down", reason=str(error))
        self._blind_since = self._blind_since or time.monotonic()
        blind = time.monotonic() - self._blind_since
        if not self._slots.alive(record.candidate):
            return self._condemn(record, findings.server_ended(f"{record.step_percent:g} %"))
        if blind <= SOURCE_PATIENCE_LOOKS * self._policy.look_seconds:
            return self._save(record)
        down = findings.source_down(f"{error.message}, for {blind:.0f} s")
        return self._pause(record, down, PauseReason.NO_SOURCE)

    def _decide(self, record: CanaryRecord) -> Decision:
        """What the step's data say; a final decision is told in numbers, and the log gets the whole table."""
        tests, seconds = _tests(record), record.watched_seconds
        decision = decide(tests, self._policy, seconds)
        if not self._slots.alive(record.candidate):
            ended = findings.server_ended(f"{record.step_percent:g} %")
            decision = Decision(outcome=Outcome.REGRESSED, judgement=ended)
        if decision.outcome is Outcome.CONTINUE or tests.step is None:
            return decision
        arms = self._traffic.step_arms(record)
        summary = f"{decision.judgement.summary}: {step_in_numbers(tests.step, arms)}"
        judgement = decision.judgement.model_copy(update={"summary": summary})
        table = format_step(tests, tests.step, arms, judgement=judgement, policy=self._policy, seconds=seconds)
        log.info(table)
        return decision.model_copy(update={"judgement": judgement})

    def _hangs(self, record: CanaryRecord) -> Judgement | None:
        """Whether requests that hang at the candidate, not the router, made the split look wrong."""
        step, router = _tests(record).step, self._router
        candidate_waits = router.active_requests(record.candidate)
        stable_waits = router.active_requests(other_slot(record.candidate))
        if step is None or candidate_waits is None or stable_waits is None:
            return None
        return findings.does_not_answer(step, candidate_waits=candidate_waits, stable_waits=stable_waits)

    def _act_on(self, record: CanaryRecord, decision: Decision) -> CanaryRecord:
        judgement = decision.judgement
        match decision.outcome:
            case Outcome.CONTINUE:
                return self._save(record, judgement=judgement)
            case Outcome.PASS:
                return self._pass(record, judgement)
            case Outcome.ANOMALOUS:
                hangs = self._hangs(record)  # whatever the policy says of regressions: users wait
                return (
                    self._condemn(record, hangs) if hangs else self._pause(record, judgement, PauseReason.WRONG_SPLIT)
                )
            case Outcome.REGRESSED:
                return self._regressed(record, judgement)
            case Outcome.UNDECIDED:
                return self._undecided(record, judgement)

    def _regressed(self, record: CanaryRecord, judgement: Judgement) -> CanaryRecord:
        """Roll back, or keep the weights and ask; a fault that users would meet is never kept."""
        step = _tests(record).step
        fails = step is None or evidence.guard(step, self._policy) is not None
        if fails or self._policy.on_regression == "roll_back" or not self._slots.alive(record.candidate):
            return self._condemn(record, judgement)
        return self._pause(record, judgement, PauseReason.REGRESSED)

    def _undecided(self, record: CanaryRecord, judgement: Judgement) -> CanaryRecord:
        step = _tests(record).step
        if step is not None and evidence.stable_is_bad(step):  # nowhere to go back to
            return self._pause(record, judgement, PauseReason.UNDECIDED)
        if self._policy.on_undecided == "roll_back":
            return self._condemn(record, judgement)
        clean = findings.undecided_and_clean(step) if step is not None else None
        if self._policy.on_undecided == "advance" and clean is not None:
            words = f"{judgement.summary}; advancing"
            record = record.with_event(EventKind.VERDICT, words, by=self._owner, verdict=judgement.verdict)
            return self._pass(record, clean)
        return self._pause(record, judgement, PauseReason.UNDECIDED)

    def _pass(self, record: CanaryRecord, judgement: Judgement) -> CanaryRecord:
        if record.step_percent < 100.0:  # noqa: PLR2004
            record = record.with_event(EventKind.PASSED, judgement.summary, by=self._owner, verdict=judgement.verdict)
            passed = {"passed_percent": record.step_percent, "pause": None}
            return self._save(record, phase=Phase.PASSED, judgement=judgement, **passed)
        want = self._state(record.candidate, 1.0, on_trial=False)
        if (drift := self._drift(record, self._router.read()[0])) is not None:
            return self._drifted(record, drift)
        record = self._save(record, intended=want, judgement=judgement)
        traffic_to(self._router, want, self._plan.patience)
        record = record.marked("promoted", share=1.0)
        record = record.with_event(EventKind.PROMOTED, judgement.summary, by=self._owner, verdict=judgement.verdict)
        return self._save(record, phase=Phase.PROMOTED, applied=want, passed_percent=100.0, pause=None)

    def _drift(self, record: CanaryRecord, current: RouteState) -> Judgement | None:
        """Why the router is in a state that nobody of ours asked for; None when it is not.

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
        log.warning(f"rolling back: {judgement.summary}", percent=record.step_percent)
        marked = record.marked(f"rolling back: {judgement.summary}", share=record.step_percent / 100)
        told = marked.with_event(EventKind.ROLLING_BACK, judgement.summary, by=self._owner, verdict=judgement.verdict)
        return self._save(told, phase=Phase.ROLLING_BACK, judgement=judgement, pause=None)

    def _roll_back(self, record: CanaryRecord) -> CanaryRecord:
        confirmed = True
        if record.stable is not None:
            want = self._state(record.stable, 1.0, on_trial=False)
            confirmed = traffic_to(self._router, want, self._plan.patience)
            record = record.model_copy(update={"intended": want, "applied": want if confirmed else None})
        record = record.marked("traffic on stable", share=0.0)
        record = record.with_event(EventKind.ROLLED_BACK, "all traffic is on stable", by=self._owner, percent=0.0)
        retire(self._router, self._slots, record.candidate, self._plan.patience)
        return self._save(record, phase=Phase.ROLLED_BACK, traffic_confirmed=confirmed)

    def _state(self, slot: SlotName, share: float, *, on_trial: bool) -> RouteState:
        mine = round(share * ALL)
        weights = {slot: mine} if mine == ALL else {slot: mine, other_slot(slot): ALL - mine}
        candidate = slot if on_trial else None
        wanted = RouteState(
            weights=weights,
            candidate=candidate,
            sticky_header=self._policy.session_header if on_trial else None,
            owner=self._owner,
            epoch=self._epoch,
        )
        return self._router.nearest(wanted)

    def _save(self, record: CanaryRecord, **changes: object) -> CanaryRecord:
        heard = {"epoch": self._epoch, "heard_at": time.time()}
        return self._journal.save(record.model_copy(update={**changes, **heard}))


def _tests(record: CanaryRecord) -> AnalysisState:
    if record.analysis is None:
        raise ConfigError(f"the canary is {record.phase} without an analysis", where=record.release_id)
    return record.analysis


def _finished(record: CanaryRecord, percent: float) -> Judgement | None:
    """The judgement to return when the record has nothing left to do for this step."""
    settled = record.phase in (*_SETTLED, Phase.PAUSED)
    passed = record.phase is Phase.PASSED and percent <= record.passed_percent
    return record.judgement if settled or passed else None
