"""A step in force: shift, look, decide, and what follows from the decision."""

from __future__ import annotations

import time

from llm_pipeline.base.errors import PipelineError, Transient
from llm_pipeline.base.logging import Lines, get_logger
from llm_pipeline.base.verdict import Judgement
from llm_pipeline.canary import analysis, evidence
from llm_pipeline.canary import judgements as findings
from llm_pipeline.canary.analysis import StepState, with_look
from llm_pipeline.canary.controller_core import ControllerCore, tests_of
from llm_pipeline.canary.events import EventKind
from llm_pipeline.canary.evidence import Decision, Outcome, decide
from llm_pipeline.canary.moving import wait_converged
from llm_pipeline.canary.record import CanaryRecord, PauseReason, Phase
from llm_pipeline.canary.router import other_slot
from llm_pipeline.canary.step_summary import format_step, step_in_numbers

log = get_logger(__name__)

SOURCE_PATIENCE_LOOKS = 30
"""The canary pauses once the source of metrics has been down for this many looks."""


class Watching(ControllerCore):
    """From SHIFTING to the end of a step."""

    def _shift(self, record: CanaryRecord) -> CanaryRecord:
        """Record the intent, write the routes, wait until the router confirms them, record that."""
        current, revision = self._router.read()
        if (drift := self._drift(record, current)) is not None:
            return self._drifted(record, drift)
        want = self._state(record.candidate, self._policy.share_at(record.step_percent), on_trial=True)
        record = self._save(record, intended=want)
        revision = self._router.write(want, revision)
        if not wait_converged(self._router, revision, self._plan.patience.confirm):
            return self._condemn(record, findings.not_acknowledged())
        log.info("traffic shifted", percent=record.step_percent, slot=record.candidate, revision=revision)
        now = time.time()
        resumed = record.applied is not None and record.applied.same_traffic(want) and record.step_began_at > 0
        self._clock.start()
        return self._save_later(
            record if resumed else self._traffic.step_begins(self._shifted(record)),
            phase=Phase.BAKING,
            applied=want,
            step_began_at=record.step_began_at if resumed else now,
        )

    def _shifted(self, record: CanaryRecord) -> CanaryRecord:
        percent = f"{record.step_percent:g} %"
        record = record.with_event(EventKind.SHIFTED, f"{percent} of the traffic to {record.candidate}", by=self._owner)
        return record.marked(percent, share=self._policy.share_at(record.step_percent))

    def _look(self, record: CanaryRecord) -> CanaryRecord:
        """One look, recorded. If the store refuses it, the next look starts where the last recorded one ended."""
        time.sleep(self._policy.look_seconds)
        current, _ = self._router.read()
        if (drift := self._drift(record, current)) is not None:
            return self._drifted(record, drift)
        elapsed = self._clock.look(self._policy.look_seconds)
        watched = record.watched_seconds + (0.0 if record.pause_request else elapsed)
        began = self._clock.began(record.step_began_at, watched)
        watching = record.model_copy(update={"watched_seconds": watched, "step_began_at": began})
        tests = tests_of(record)
        try:
            seen, seeing = self._traffic.look(watching, tests.thresholds)
        except Transient as error:
            return self._without_source(record, error)
        self._blind_since = None
        tests = analysis.observe(tests, seen)
        looks = with_look(record.looks, tests, at=time.time(), percent=record.step_percent)
        record = seeing.model_copy(update={"analysis": tests, "looks": looks})
        decision = self._decide(record)
        if seen.behind and decision.outcome is Outcome.PASS:  # unread lines may say otherwise
            return self._save(record)
        return self._act_on(record, decision)

    def _without_source(self, record: CanaryRecord, error: Transient) -> CanaryRecord:
        """Wait for the source without counting the time as baked, conclude nothing, and pause after a while."""
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
        """Decide the step by its data; a final decision is logged with the full table."""
        tests, seconds = tests_of(record), record.watched_seconds
        decision = decide(tests, self._policy, seconds)
        if not self._slots.alive(record.candidate):
            ended = findings.server_ended(f"{record.step_percent:g} %")
            decision = Decision(outcome=Outcome.REGRESSED, judgement=ended)
        if record.pause_request is not None and decision.outcome in (Outcome.PASS, Outcome.UNDECIDED):
            decision = decision.model_copy(update={"outcome": Outcome.CONTINUE})  # paused by a person, who resumes it
        if decision.outcome is Outcome.CONTINUE or tests.step is None:
            return decision
        arms = self._traffic.step_arms(record)
        summary = f"{decision.judgement.summary}: {step_in_numbers(tests.step, arms)}"
        judgement = decision.judgement.model_copy(update={"summary": summary})
        table = format_step(tests, tests.step, arms, judgement=judgement, policy=self._policy, seconds=seconds)
        log.info(Lines(f"both versions:{table}"))
        return decision.model_copy(update={"judgement": judgement})

    def _hangs(self, record: CanaryRecord) -> Judgement | None:
        """The judgement if requests that hang at the candidate, and not the router, make the split look wrong."""
        step, router = tests_of(record).step, self._router
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
                hangs = self._hangs(record)  # whatever on_regression says: users are waiting
                return (
                    self._condemn(record, hangs) if hangs else self._pause(record, judgement, PauseReason.WRONG_SPLIT)
                )
            case Outcome.REGRESSED:
                return self._regressed(record, judgement)
            case Outcome.UNDECIDED:
                return self._undecided(record, judgement)

    def _regressed(self, record: CanaryRecord, judgement: Judgement) -> CanaryRecord:
        """Roll back, or freeze and ask a person; a fault that users would notice is always rolled back."""
        step = tests_of(record).step
        fails = step is None or evidence.guard(step, self._policy) is not None
        if fails or self._policy.on_regression == "roll_back" or not self._slots.alive(record.candidate):
            return self._condemn(record, judgement)
        return self._pause(record, judgement, PauseReason.REGRESSED)

    def _undecided(self, record: CanaryRecord, judgement: Judgement) -> CanaryRecord:
        step = tests_of(record).step
        if step is not None and evidence.stable_is_bad(step):  # there is no stable to roll back to
            return self._pause(record, self._with_stable_again(judgement), PauseReason.UNDECIDED)
        if self._policy.on_undecided == "roll_back":
            return self._condemn(record, judgement)
        clean = findings.undecided_and_clean(step) if step is not None else None
        if self._policy.on_undecided == "advance" and clean is not None:
            words = f"{judgement.summary}; advancing"
            record = record.with_event(EventKind.VERDICT, words, by=self._owner, verdict=judgement.verdict)
            return self._pass(record, clean)
        return self._pause(record, self._with_advice(judgement, step), PauseReason.UNDECIDED)

    def _with_advice(self, judgement: Judgement, step: StepState | None) -> Judgement:
        """The judgement with what to do, where too few requests are why nothing is decided."""
        if step is None or step.split.candidate >= self._policy.minimum_requests:
            return judgement
        advice = findings.more_traffic(self._policy, can_replay=self._plan.can_replay)
        words = f"{judgement.summary}; too little traffic: approve the step, or {advice}"
        return judgement.model_copy(update={"summary": words})

    def _with_stable_again(self, judgement: Judgement) -> Judgement:
        """Restart stable's server if it has ended, so that a rollback is possible."""
        production = self._plan.production
        if production is None or self._slots.alive(production.slot):
            return judgement
        try:
            self._slots.ensure(production.slot, production.repository, self._token)
            words = "stable's server had ended and was restarted"
        except PipelineError as error:
            words = f"stable's server has ended and does not start: {error.message}"
        log.warning(words, slot=production.slot)
        return judgement.model_copy(update={"summary": f"{judgement.summary}; {words}"})
