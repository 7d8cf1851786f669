from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from statistics import NormalDist

import pytest
from looking import LIMITS, request, watched

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.access_log import ObservedRequest
from llm_pipeline.canary.analysis import AnalysisState, Outcome, StepDecision, begin, begin_step, decide, observe
from llm_pipeline.canary.metrics import BothCounts, Counts, Window, fix_thresholds
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.statistics.eprocess import Variation

POLICY = CanaryPolicy(minimum_bake_seconds=60, maximum_bake_seconds=600, minimum_requests=20)


def started(share: float = 0.5) -> AnalysisState:
    return begin_step(begin(LIMITS, POLICY), share)


def look(
    state: AnalysisState, requests: list[ObservedRequest], elapsed: float = 100.0
) -> tuple[AnalysisState, StepDecision]:
    state = watched(state, requests) if requests else observe(state, Window(), 1.0)
    return state, decide(state, POLICY, elapsed)


def verdicts(decision: StepDecision) -> dict[str, Verdict]:
    return {fact.name: fact.verdict for fact in decision.judgement.evidence}


def worse(decision: StepDecision) -> list[str]:
    return [name for name, verdict in verdicts(decision).items() if verdict is Verdict.NO_GO]


def mixed(candidate: int, stable: int, **of_candidate) -> list[ObservedRequest]:
    """A request a second and arm, 10 % slow in both arms, unless said otherwise of the candidate."""
    answer = {"truncated": False, "empty": False}
    both = [request("blue", at=number, total=150.0 if number % 10 == 0 else 20.0, **answer) for number in range(stable)]
    return both + [
        request("green", at=number, **{"total": 150.0 if number % 10 == 0 else 20.0, **answer, **of_candidate})
        for number in range(candidate)
    ]


def test_a_clean_step_passes_when_its_time_is_over() -> None:
    state, decision = look(started(), mixed(100, 100), elapsed=59.0)
    assert decision.outcome is Outcome.CONTINUE
    decision = decide(state, POLICY, 60.0)
    assert (decision.outcome, decision.judgement.verdict) == (Outcome.PASS, Verdict.GO)
    names = [fact.name for fact in decision.judgement.evidence]
    assert names[:5] == [*LIMITS.limits, "sample ratio"]


def test_a_step_with_too_few_candidate_requests_is_undecided_at_its_end() -> None:
    state, decision = look(started(0.05), mixed(2, 40))
    assert decision.outcome is Outcome.CONTINUE
    _, decision = look(state, [], elapsed=600.0)
    assert (decision.outcome, decision.judgement.verdict) == (Outcome.UNDECIDED, Verdict.INCONCLUSIVE)
    assert look(started(), [], elapsed=600.0)[1].outcome is Outcome.UNDECIDED


def test_what_neither_arm_shows_any_more_holds_no_step_but_missing_answers_do() -> None:
    whole = [replace(one, streaming=False, first_byte_milliseconds=None) for one in mixed(50, 50)]
    _, decision = look(started(), whole)
    assert decision.outcome is Outcome.PASS
    assert "slow first token" not in verdicts(decision)
    refused = [request(arm, at=number, refused=True) for number in range(50) for arm in ("blue", "green")]
    _, decision = look(started(), refused, elapsed=600.0)
    assert decision.outcome is Outcome.UNDECIDED
    assert verdicts(decision)["slow end"] is Verdict.INCONCLUSIVE


def test_failures_in_a_row_roll_back_at_once_also_across_looks() -> None:
    state, decision = look(started(), [request("green", fault=True) for _ in range(3)], elapsed=0.5)
    assert decision.outcome is Outcome.CONTINUE
    nobodys = [request("blue"), request("green", at=9, refused=True), request("green", at=9, cancelled=True)]
    state, _ = look(state, nobodys, elapsed=1.0)
    _, decision = look(state, [request("green", fault=True) for _ in range(2)], elapsed=1.5)
    assert decision.outcome is Outcome.REGRESSED
    assert verdicts(decision) == {"immediate guard": Verdict.NO_GO}
    state, _ = look(state, [request("green", at=1)], elapsed=2.0)
    _, decision = look(state, [request("green", fault=True) for _ in range(2)], elapsed=2.5)
    assert decision.outcome is Outcome.CONTINUE


def test_half_of_twenty_requests_failing_rolls_back_at_once() -> None:
    alternating = [request("green", at=number, fault=number % 2 == 0) for number in range(20)]
    _, decision = look(started(), alternating + [request("blue", at=n) for n in range(20)], elapsed=0.5)
    assert worse(decision) == ["immediate guard"]


@pytest.mark.parametrize(
    ("change", "metrics"),
    [
        ({"total": 900.0}, ["slow end"]),
        ({"first": 90.0}, ["slow first token"]),
        ({"truncated": True}, ["empty or cut answers"]),
        ({"empty": True}, ["empty or cut answers"]),
        ({"repetition": 0.97}, ["empty or cut answers"]),
    ],
)
def test_a_worse_candidate_regresses_and_the_evidence_names_the_metric(change, metrics) -> None:
    _, decision = look(started(), mixed(100, 100, **change), elapsed=3.0)
    assert decision.outcome is Outcome.REGRESSED
    assert worse(decision) == metrics


@pytest.mark.parametrize("answered", [{"refused": True}, {"fault": True}], ids=["400", "500"])
def test_a_strangers_malformed_bodies_hide_no_failures(answered) -> None:
    """255 bodies of `{{{` in the past hour, however they were answered, and more while the candidate fails 30 %."""
    stranger = [request(at=12.0 * n, **answered) for n in range(255)]
    history = fix_thresholds([*mixed(0, 3600), *stranger], POLICY)
    assert history is not None

    def judged(*, failing: int) -> StepDecision:
        candidate = [replace(one, fault=n % 10 < failing, error=n % 10 < failing) for n, one in enumerate(mixed(80, 0))]
        refused = [request(arm, at=n % 80, refused=True) for n in range(600) for arm in ("blue", "green")]
        state = watched(begin_step(begin(history, POLICY), 0.5), [*mixed(0, 80), *candidate, *refused])
        return decide(state, POLICY, 80.0)

    assert worse(judged(failing=3)) == ["failed answers"]
    assert judged(failing=0).outcome is Outcome.PASS


def test_a_candidate_that_refuses_what_stable_answers_makes_the_split_wrong() -> None:
    seen = [*mixed(0, 300), *(request("green", at=n, refused=n % 2 == 0) for n in range(300))]
    _, decision = look(started(), seen)
    assert (decision.outcome, verdicts(decision)) == (Outcome.ANOMALOUS, {"sample ratio": Verdict.ANOMALOUS})


def test_a_wrong_split_is_anomalous_before_any_comparison_and_the_guard_comes_before_it() -> None:
    _, decision = look(started(0.05), mixed(200, 200, total=500.0))
    assert decision.outcome is Outcome.ANOMALOUS
    _, decision = look(started(0.05), [request("green", at=n, fault=True) for n in range(200)], elapsed=0.5)
    assert decision.outcome is Outcome.REGRESSED


def test_both_arms_failing_blames_nobody_and_holds() -> None:
    both = [request(arm, at=number, fault=True) for number in range(40) for arm in ("blue", "green")]
    state, decision = look(started(), both)
    assert decision.outcome is Outcome.CONTINUE
    assert verdicts(decision)["stable's own failures"] is Verdict.INCONCLUSIVE
    assert look(state, [], elapsed=600.0)[1].outcome is Outcome.UNDECIDED


@pytest.mark.parametrize("arm", ["green", "blue"])
def test_a_stall_of_half_a_minute_of_one_server_decides_nothing(arm: str) -> None:
    stalled = [
        replace(one, total_milliseconds=5000.0, first_byte_milliseconds=4900.0)
        if one.arm == arm and 100 <= one.started_at < 130
        else one
        for one in (*mixed(200, 200), *mixed(200, 200))
    ]
    assert worse(look(started(), stalled)[1]) == []


@cache
def compared() -> AnalysisState:
    """A clean step: 0.2 % of stable's requests failed, 10 % were slow in both arms."""
    answer = {"truncated": False, "empty": False}
    stable = [request("blue", at=n, fault=n == 0, total=150.0 if n % 10 == 1 else 20.0, **answer) for n in range(500)]
    return watched(started(0.5), [*stable, *(replace(one, arm="green", on_trial=True) for one in stable[1:])])


def last_step(share: float, *, failing: int = 0, times: float = 1.0) -> tuple[AnalysisState, StepDecision]:
    """All traffic, or nearly, after a clean comparison."""
    candidate = [
        request(
            "green",
            at=1000 + n,
            fault=n < failing and n % 7 != 0,
            total=times * (150.0 if n % 10 == 1 else 40.0),
            truncated=False,
        )
        for n in range(320)
    ]
    state = watched(begin_step(compared(), share), candidate)
    return state, decide(state, POLICY, 320.0)


@pytest.mark.parametrize("share", [0.98, 1.0])
def test_the_last_step_is_held_to_what_stable_showed_before(share) -> None:
    assert worse(last_step(share, failing=31)[1]) == ["failed answers"]
    assert worse(last_step(share, times=3.0)[1]) == ["slow end"]
    assert last_step(share, failing=2)[1].outcome is Outcome.PASS


def test_a_step_passes_only_on_data_that_kept_arriving_to_its_end() -> None:
    state, decision = last_step(0.98)
    assert decision.outcome is Outcome.PASS
    for news, outcome in ((False, Outcome.PASS), (True, Outcome.CONTINUE)):
        for _ in range(5):
            state = observe(state, Window(news=news), 1.0)
        decision = decide(state, POLICY, 400.0)
        assert decision.outcome is outcome
    assert verdicts(decision)["data until the step's end"] is Verdict.INCONCLUSIVE
    assert decide(state, POLICY, 600.0).outcome is Outcome.UNDECIDED
    state = watched(state, [request("green", at=2000 + number, truncated=False) for number in range(20)])
    assert decide(state, POLICY, 500.0).outcome is Outcome.PASS


def test_a_silence_that_little_traffic_explains_is_none() -> None:
    seen = [request(arm, at=60.0 * n, truncated=False) for n in range(20) for arm in ("blue", "green")]
    state = watched(started(0.5), seen)
    for _ in range(3):
        state = observe(state, Window(), 1.0)
    assert decide(state, POLICY, 90.0).outcome is Outcome.PASS


def test_slow_is_stables_quantiles_and_a_multiple_of_the_highest() -> None:
    found = fix_thresholds([request(total=float(number), first=number / 2) for number in range(1, 101)], POLICY)
    assert found is not None
    told = {name: [(one.label, one.milliseconds) for one in limits] for name, limits in found.limits.items()}
    assert told == {
        "failed answers": [("", 0.0)],
        "slow first token": [("p50", 25.0), ("p90", 45.0), ("4 x p90", 180.0)],
        "slow end": [("p50", 50.0), ("p90", 90.0), ("4 x p90", 360.0)],
    }
    many = fix_thresholds([request(total=float(n)) for n in range(500)], POLICY)
    assert many is not None
    assert [limit.label for limit in many.limits["slow end"]] == ["p50", "p90", "p99", "4 x p99"]


def test_what_stable_does_not_show_is_not_compared() -> None:
    assert fix_thresholds([request() for _ in range(19)], POLICY) is None
    found = fix_thresholds([request(streaming=False) for _ in range(50)], POLICY)
    assert found is not None
    assert [metric.name for metric in begin(found, POLICY).metrics] == ["failed answers", "slow end"]


def test_a_candidate_three_times_slower_is_seen_on_a_host_whose_load_wanders() -> None:
    """Of a canary that was promoted once: p50 of 36 against 10 ms, 492 of 494 slow against 155 of 403."""
    wandering = (NormalDist(-0.5, 0.65).inv_cdf((n + 0.5) / 10) for n in range(10))  # log odds
    shares = [1.0 / (1.0 + math.exp(-one)) for one in wandering]
    history = [(100, (round(100 * share), 0)) for share in shares for _ in range(3)]
    variation = Variation.learned(history, 2)
    assert variation.variances()[0] > 0.3
    thresholds = LIMITS.model_copy(update={"variations": {"slow end": variation}})
    policy = POLICY.model_copy(update={"slow_ratio": 2.0})
    state = begin_step(begin(thresholds, policy), 0.55)
    for block in range(40):
        mine, theirs = ((total * (block + 1) // 40 - total * block // 40) for total in (494, 403))
        slow = Counts(requests=mine, events=(mine - (block in (9, 29)), 0))
        usual = Counts(requests=theirs, events=(155 * (block + 1) // 40 - 155 * block // 40, 0))
        seen = Window(counts={"slow end": BothCounts(candidate=slow, stable=usual)}, saw_anything=True)
        state = observe(state, seen, thresholds.block_seconds)
    total = next(metric.total for metric in state.metrics if metric.name == "slow end")
    assert (total.candidate.events[0], total.stable.events[0]) == (492, 155)
    assert worse(decide(state, policy, 400.0)) == ["slow end"]
