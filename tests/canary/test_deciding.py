"""Every phase with everything that may be found: what a canary does next, and what it never does."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from looking import LIMITS
from simulated import CANDIDATE, FIRST

from llm_pipeline.base.verdict import Evidence, Verdict, judge
from llm_pipeline.canary import analysis
from llm_pipeline.canary.analysis import Outcome, StepDecision
from llm_pipeline.canary.deciding import Seen, decide
from llm_pipeline.canary.record import CanaryPlan, CanaryRecord, Pause, PauseReason, Phase, new_attempt
from llm_pipeline.canary.router import ALL, RouteState, all_to
from llm_pipeline.canary.slots import WarmUp
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.store.place_state import Answer, PauseRequest, StepApproval

NOW = datetime(2026, 6, 1, tzinfo=UTC).timestamp()
LONG_AGO = NOW - 1_000.0
ON_STABLE = all_to("blue", owner="", epoch=0)
BY_HAND = RouteState(weights={"blue": 7_000, "green": 3_000}, candidate="green", owner="alice", epoch=0)
STEPS = (20.0, 50.0, 100.0)
_VERDICTS = {
    Outcome.CONTINUE: Verdict.INCONCLUSIVE,
    Outcome.PASS: Verdict.GO,
    Outcome.REGRESSED: Verdict.NO_GO,
    Outcome.ANOMALOUS: Verdict.ANOMALOUS,
    Outcome.UNDECIDED: Verdict.INCONCLUSIVE,
}


def split(percent: float) -> RouteState:
    mine = round(min(percent, 98.0) * 100)
    return RouteState(weights={"green": mine, "blue": ALL - mine}, candidate="green", owner="", epoch=0)


def plan(**policy: object) -> CanaryPlan:
    return CanaryPlan(
        release_id="r1", run="run", target="cpu", candidate=CANDIDATE, production=FIRST,
        policy=CanaryPolicy.model_validate({"steps_percent": STEPS, "pause_deadline_seconds": 500.0, **policy}),
    )  # fmt: skip


def decision(outcome: Outcome) -> StepDecision:
    measured = None if outcome in (Outcome.CONTINUE, Outcome.UNDECIDED) else 1.0
    fact = Evidence(name="it", verdict=_VERDICTS[outcome], measured=measured, samples=0 if measured is None else 9)
    return StepDecision(outcome=outcome, judgement=judge(outcome.value, [fact]))


def pause_request(since: float, record: CanaryRecord) -> PauseRequest:
    return PauseRequest(attempt=record.began_at, by="alice", since=since, deadline_seconds=500.0)


def record_in(phase: Phase, passed: float, of: CanaryPlan) -> CanaryRecord:
    """A record as it may be there: before its first step, in a step, or between two."""
    record = new_attempt(of)
    if phase in (Phase.PENDING, Phase.WARM):
        return record.model_copy(update={"phase": phase})
    step = passed if phase is Phase.PASSED else next(one for one in STEPS if one > passed)
    tests = analysis.begin_step(analysis.begin(LIMITS, of.policy), split(step).weights["green"] / ALL)
    told = {"intended": split(step), "applied": split(passed or step)}
    return record.model_copy(
        update={"phase": phase, "step_percent": step, "passed_percent": passed, "analysis": tests, **told}
    )


def cases() -> Iterator[tuple[CanaryRecord, Seen, CanaryPlan, float]]:
    policies = [
        plan(on_undecided=undecided, approve_before_percent=asked)
        for undecided in ("pause", "roll_back")
        for asked in ((), STEPS)
    ]
    answers: list[Answer | None] = [None, "waiting", "approved", "denied", "timed out"]
    outcomes = [None, *Outcome]
    for of, phase, passed in itertools.product(policies, Phase, (0.0, 20.0, 50.0)):
        if phase is Phase.PASSED and not passed:
            continue
        record = record_in(phase, passed, of)
        percent = next(one for one in STEPS if one > record.passed_percent)
        told = record.applied or ON_STABLE
        pauses: list[Pause | None] = [None]
        if phase is Phase.PAUSED:
            pauses = [
                Pause(reason=reason, percent=percent, since=since, deadline_seconds=500.0)
                for reason in PauseReason
                for since in (NOW, LONG_AGO)
            ]
        holds = [None, pause_request(NOW, record), pause_request(LONG_AGO, record)]
        for pause, hold, drifts, runs in itertools.product(pauses, holds, (False, True), (False, True)):
            found = record.model_copy(update={"pause": pause, "pause_request": hold})
            seen = Seen(
                NOW, BY_HAND if drifts else told, candidate_runs=runs, stable_runs=passed != 50.0,
                warm=WarmUp(prompts=2, answered=int(passed != 20.0), matched=0), thresholds=LIMITS,
            )  # fmt: skip
            for answer, outcome in itertools.product(answers, outcomes):
                looks = phase in (Phase.BAKING, Phase.PASSED)
                if (outcome and not looks) or (answer and phase is Phase.BAKING):
                    continue
                approval = None if answer is None else StepApproval(
                    release_id="r1", run="run", percent=percent, question="begin", answer=answer, by="bob"
                )  # fmt: skip
                looked = None if outcome is None else decision(outcome)
                yield found, Seen(**{**seen.__dict__, "approval": approval, "decision": looked}), of, percent


def test_every_record_with_everything_that_may_be_found(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    count = 0
    for record, seen, of, percent in cases():
        count += 1
        after = decide(record, seen, of, percent)
        moved, asks = after.phase is not record.phase, percent in of.policy.approve_before_percent
        held, outcome = record.pause_request, seen.decision.outcome if seen.decision else None
        case = (record.phase, record.passed_percent, record.pause, held, seen, of.policy)
        if record.settled or record.phase is Phase.ROLLING_BACK:
            assert after == record, case
            continue
        running = record.phase in (Phase.WARM, Phase.SHIFTING, Phase.BAKING, Phase.PASSED)
        if running and not seen.candidate_runs:
            assert after.phase is Phase.ROLLING_BACK, case
            assert after.judgement is not None
            assert after.judgement.verdict is (Verdict.NO_GO if seen.stable_runs else Verdict.INCONCLUSIVE), case
            continue
        if held is not None and record.phase not in (Phase.SHIFTING, Phase.PAUSED):
            assert after.phase in (record.phase, Phase.ROLLING_BACK, Phase.PAUSED), case
            assert (after.phase is Phase.ROLLING_BACK) or not held.over(NOW), case
            assert after.passed_percent == record.passed_percent, case
        if seen.traffic is BY_HAND and record.phase in (Phase.SHIFTING, Phase.BAKING):
            assert after.phase in (Phase.PAUSED, Phase.ROLLING_BACK), case
        if after.passed_percent > record.passed_percent:
            answered = record.phase is Phase.PAUSED and seen.approval is not None and seen.approval.answer == "approved"
            assert outcome is Outcome.PASS or answered, case
            assert after.judgement is not None
            assert (after.judgement.verdict, after.passed_percent) == (Verdict.GO, record.step_percent), case
        if after.phase is Phase.PROMOTED:
            assert (after.passed_percent, seen.traffic is BY_HAND) == (100.0, False), case
        if moved and after.phase is Phase.SHIFTING and record.phase is Phase.PASSED and asks:
            assert seen.approval is not None
            assert seen.approval.answer == "approved", case
        if moved and after.phase is Phase.PAUSED:
            assert after.pause is not None, case
            assert after.judgement is not None
            assert after.judgement.verdict is not Verdict.GO, case
        if moved and after.phase is Phase.ROLLING_BACK:
            assert after.judgement is not None
            assert after.judgement.verdict is not Verdict.GO, case
            assert after.events[-1].kind == "rolling back", case
        if not record.candidate_started and after.candidate_started:
            assert (record.phase, held, seen.traffic) == (Phase.PENDING, None, ON_STABLE), case
            assert not asks or (seen.approval is not None and seen.approval.answer == "approved"), case
    assert count > 5_000
