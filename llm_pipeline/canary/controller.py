"""The canary of one release on one target: durable, fenced, level-triggered.

    PENDING -> WARM -> SHIFTING(k) -> BAKING(k) -> PASSED(k) -> ... -> PROMOTED
    any -> ROLLING_BACK -> ROLLED_BACK;  SHIFTING or BAKING -> PAUSED (hold) -> SHIFTING again
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

from llm_pipeline.canary import analysis, attempts, findings
from llm_pipeline.canary.analysis import AnalysisState
from llm_pipeline.canary.decision import Decision, Outcome, decide
from llm_pipeline.canary.observations import AccessLog
from llm_pipeline.canary.plan import CanaryPlan
from llm_pipeline.canary.record import CanaryJournal, CanaryRecord, Phase
from llm_pipeline.canary.rollback import retire, traffic_to, wait_converged, wait_usable
from llm_pipeline.canary.router import (
    ALL,
    Fenced,
    RouterUnavailable,
    RouteState,
    SlotName,
    TrafficRouter,
    all_to,
    other_slot,
)
from llm_pipeline.canary.slots import SlotControl, WarmUp
from llm_pipeline.canary.slow_limits import fix_thresholds
from llm_pipeline.canary.step_table import StepArms, format_step, step_in_numbers
from llm_pipeline.canary.windows import window
from llm_pipeline.errors import ConfigError
from llm_pipeline.logging import get_logger
from llm_pipeline.store.lease import Lease
from llm_pipeline.verdict import Judgement

log = get_logger(__name__)

BASELINE_SECONDS = 120.0
"""Stable's requests of this long before the first step fix what "slow" means."""

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
        access_log: AccessLog,
        slots: SlotControl,
    ) -> None:
        self._plan = plan
        self._policy = plan.policy
        self._journal = journal
        self._lease = lease
        self._router = router
        self._access_log = access_log
        self._slots = slots
        self._owner = f"{plan.release_id}@{socket.gethostname()}.{os.getpid()}"
        self._epoch = lease.epoch

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
                return self._start_candidate(record)
            case Phase.WARM:
                return self._warm_up(record, percent)
            case Phase.PASSED:
                return self._begin_step(record, percent, _tests(record))
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
        record = self._journal.load() or attempts.first_attempt(self._plan, self._access_log.end())
        self._epoch = max(self._lease.epoch, record.epoch + 1, self._router_epoch() + 1)
        if attempts.is_over(record, self._plan, lambda: self._router.read()[0]):
            record = self._try_again(record)
        self._check_order(record, percent)
        record = record.model_copy(update={"run": self._plan.run})
        if record.phase is Phase.PAUSED and record.analysis is None:
            return self._save(record, phase=Phase.PENDING)
        if record.phase is Phase.PAUSED:
            log.info("going on after a pause", percent=record.step_percent)
            return self._begin_step(record, record.step_percent, _tests(record))
        return self._save(record)

    def _try_again(self, record: CanaryRecord) -> CanaryRecord:
        """A fresh attempt, not yet saved; what an earlier run left half rolled back is rolled back first."""
        if record.phase is Phase.ROLLING_BACK:
            record = self._roll_back(record)
        log.info(
            "an earlier run's canary is over: this run tries again", earlier=record.phase.value, run=self._plan.run
        )
        return attempts.next_attempt(record, self._plan, self._access_log.end())

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
                return self._pause(record, drift)  # the idle slot may not be idle: nothing is started or stopped
        record = self._save(record, candidate_started=True)
        self._slots.replace(record.candidate, record.repository)
        log.info("candidate started", slot=record.candidate, repository=str(record.repository))
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
        return self._begin_tests(record, percent)

    def _deploy_first(self, record: CanaryRecord, warm: WarmUp) -> CanaryRecord:
        """Nothing serves yet, so there is nothing to compare with and no user to protect: all traffic at once."""
        want = self._state(record.candidate, 1.0, on_trial=False)
        record = self._save(record, intended=want)
        traffic_to(self._router, want, self._plan.patience)
        return self._save(
            record.marked("first deployment", share=1.0),
            phase=Phase.PROMOTED,
            applied=want,
            passed_percent=100.0,
            judgement=findings.deployed_first(warm),
        )

    def _begin_tests(self, record: CanaryRecord, percent: float) -> CanaryRecord:
        """Wait for enough of stable's requests to say what slow means, then start the tests."""
        since = time.time() - BASELINE_SECONDS
        recent = self._access_log.recent(since)
        stable = [request for request in recent if request.arm == record.stable and not request.on_trial]
        thresholds = fix_thresholds(stable, self._policy)
        if thresholds is None:
            return self._wait_for_traffic(record, len(stable))
        log.info(
            "slow is fixed from stable's requests",
            requests=thresholds.requests,
            first_token_milliseconds=thresholds.first_token_milliseconds,
            end_to_end_milliseconds=thresholds.end_to_end_milliseconds,
        )
        return self._begin_step(record, percent, analysis.begin(thresholds, self._policy))

    def _begin_step(self, record: CanaryRecord, percent: float, tests: AnalysisState) -> CanaryRecord:
        step = analysis.begin_step(tests, percent / 100)
        return self._save(record, phase=Phase.SHIFTING, step_percent=percent, step_began_at=0.0, analysis=step)

    def _wait_for_traffic(self, record: CanaryRecord, seen: int) -> CanaryRecord:
        if time.time() - record.began_at > self._policy.maximum_bake_seconds:
            return self._condemn(record, findings.too_little_traffic(seen, self._policy.minimum_requests))
        time.sleep(self._policy.look_seconds)
        return record

    def _shift(self, record: CanaryRecord) -> CanaryRecord:
        """Record the intent, tell the router, wait for its word, record that."""
        current, revision = self._router.read()
        if (drift := self._drift(record, current)) is not None:
            return self._pause(record, drift)
        want = self._state(record.candidate, record.step_percent / 100, on_trial=True)
        record = self._save(record, intended=want)
        revision = self._router.write(want, revision)
        if not wait_converged(self._router, revision, self._plan.patience.confirm):
            return self._condemn(record, findings.not_acknowledged())
        log.info("traffic shifted", percent=record.step_percent, slot=record.candidate, revision=revision)
        now = time.time()
        resumed = record.applied is not None and record.applied.same_traffic(want) and record.step_began_at > 0
        return self._save(
            record if resumed else record.marked(f"{record.step_percent:g} %", share=record.step_percent / 100),
            phase=Phase.BAKING,
            applied=want,
            step_began_at=record.step_began_at if resumed else now,
        )

    def _look(self, record: CanaryRecord) -> CanaryRecord:
        time.sleep(self._policy.look_seconds)
        current, _ = self._router.read()
        if (drift := self._drift(record, current)) is not None:
            return self._pause(record, drift)
        tests = _tests(record)
        requests, cursor = self._access_log.read(record.cursor)
        seen = window(requests, record.candidate, tests.thresholds, record.step_began_at)
        record = record.model_copy(update={"analysis": analysis.observe(tests, seen), "cursor": cursor})
        return self._act_on(record, self._decide(record))

    def _decide(self, record: CanaryRecord) -> Decision:
        """What the step's data say; a final decision is told in numbers, and the log gets the whole table."""
        tests, seconds = _tests(record), time.time() - record.step_began_at
        decision = decide(tests, self._policy, seconds)
        if not self._slots.alive(record.candidate):
            ended = findings.server_ended(f"{record.step_percent:g} %")
            decision = Decision(outcome=Outcome.REGRESSED, judgement=ended)
        if decision.outcome is Outcome.CONTINUE or tests.step is None:
            return decision
        requests = self._access_log.recent(record.step_began_at)  # bounded: a rollback must not wait for a long log
        arms = StepArms.of(requests, record.candidate, record.step_began_at)
        summary = f"{decision.judgement.summary}: {step_in_numbers(tests.step, arms)}"
        judgement = decision.judgement.model_copy(update={"summary": summary})
        table = format_step(tests, tests.step, arms, judgement=judgement, policy=self._policy, seconds=seconds)
        log.info(table)
        return decision.model_copy(update={"judgement": judgement})

    def _act_on(self, record: CanaryRecord, decision: Decision) -> CanaryRecord:
        judgement = decision.judgement
        match decision.outcome:
            case Outcome.CONTINUE:
                return self._save(record, judgement=judgement)
            case Outcome.PASS:
                return self._pass(record, judgement)
            case Outcome.ANOMALOUS:
                return self._pause(record, judgement)
            case Outcome.REGRESSED | Outcome.UNDECIDED:
                return self._condemn(record, judgement)

    def _pass(self, record: CanaryRecord, judgement: Judgement) -> CanaryRecord:
        if record.step_percent < 100.0:  # noqa: PLR2004
            return self._save(record, phase=Phase.PASSED, passed_percent=record.step_percent, judgement=judgement)
        want = self._state(record.candidate, 1.0, on_trial=False)
        if (drift := self._drift(record, self._router.read()[0])) is not None:
            return self._pause(record, drift)
        record = self._save(record, intended=want, judgement=judgement)
        traffic_to(self._router, want, self._plan.patience)
        record = record.marked("promoted", share=1.0)
        return self._save(record, phase=Phase.PROMOTED, applied=want, passed_percent=100.0)

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

    def _pause(self, record: CanaryRecord, judgement: Judgement) -> CanaryRecord:
        log.warning(judgement.summary, percent=record.step_percent)
        marked = record.marked("paused", share=record.step_percent / 100)
        return self._save(marked, phase=Phase.PAUSED, judgement=judgement)

    def _condemn(self, record: CanaryRecord, judgement: Judgement) -> CanaryRecord:
        log.warning(f"rolling back: {judgement.summary}", percent=record.step_percent)
        marked = record.marked(f"rolling back: {judgement.summary}", share=record.step_percent / 100)
        return self._save(marked, phase=Phase.ROLLING_BACK, judgement=judgement)

    def _roll_back(self, record: CanaryRecord) -> CanaryRecord:
        confirmed = True
        if record.stable is not None:
            want = self._state(record.stable, 1.0, on_trial=False)
            confirmed = traffic_to(self._router, want, self._plan.patience)
            record = record.model_copy(update={"intended": want, "applied": want if confirmed else None})
        record = record.marked("traffic on stable", share=0.0)
        retire(self._router, self._slots, record.candidate, self._plan.patience)
        return self._save(record, phase=Phase.ROLLED_BACK, traffic_confirmed=confirmed)

    def _state(self, slot: SlotName, share: float, *, on_trial: bool) -> RouteState:
        mine = round(share * ALL)
        weights = {slot: mine} if mine == ALL else {slot: mine, other_slot(slot): ALL - mine}
        candidate = slot if on_trial else None
        return RouteState(weights=weights, candidate=candidate, owner=self._owner, epoch=self._epoch)

    def _save(self, record: CanaryRecord, **changes: object) -> CanaryRecord:
        return self._journal.save(record.model_copy(update={**changes, "epoch": self._epoch}))


def _tests(record: CanaryRecord) -> AnalysisState:
    if record.analysis is None:
        raise ConfigError(f"the canary is {record.phase} without an analysis", where=record.release_id)
    return record.analysis


def _finished(record: CanaryRecord, percent: float) -> Judgement | None:
    """The judgement to return when the record has nothing left to do for this step."""
    settled = record.phase in (*_SETTLED, Phase.PAUSED)
    passed = record.phase is Phase.PASSED and percent <= record.passed_percent
    return record.judgement if settled or passed else None
