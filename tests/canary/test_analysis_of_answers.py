"""What makes requests comparable (strata, sessions, warm caches), and what is compared beyond errors and latency."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest
from looking import watched

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.analysis import AnalysisState, begin, begin_step, observe
from llm_pipeline.canary.arm_counts import window
from llm_pipeline.canary.evidence import StepDecision, decide
from llm_pipeline.canary.metric_events import MetricLimits
from llm_pipeline.canary.observations import ObservedRequest
from llm_pipeline.canary.slow_limits import Thresholds, every_metric, fix_thresholds
from llm_pipeline.config.policy import CanaryPolicy

POLICY = CanaryPolicy(minimum_bake_seconds=10, maximum_bake_seconds=60, minimum_requests=20)
BY_SESSION = POLICY.model_copy(update={"unit": "session", "session_header": "x-user", "session_seconds": 5.0})


def request(arm: str = "blue", at: float = 0.0, **changes: object) -> ObservedRequest:
    values = {"started_at": at, "arm": arm, "on_trial": arm == "green", "fault": False, "error": False, "lost": False}
    values |= {"cancelled": False, "streaming": True, "first_byte_milliseconds": 10.0, "total_milliseconds": 50.0}
    values |= {"bytes_sent": 100, "stream_milliseconds": 100.0, "request_bytes": 100, "output_tokens": 21}
    values |= {"finish_reason": "stop", "empty": False, "truncated": False, "repetition": 0.1, "odd_characters": 0.15}
    return ObservedRequest(**{**values, **changes})  # type: ignore[arg-type]


def fixed(requests: Iterable[ObservedRequest], policy: CanaryPolicy = POLICY) -> Thresholds:
    thresholds = fix_thresholds(requests, policy)
    assert thresholds is not None
    return thresholds


def tokens(count: int, arm: str = "blue", **changes: object) -> list[ObservedRequest]:
    """Answers of 11 to 30 tokens, in no order, 5 ms each after the first."""
    lengths = (11 + n * 7 % 20 for n in range(count))
    return [
        request(arm, n, **{"output_tokens": length, "stream_milliseconds": 5.0 * (length - 1), **changes})
        for n, length in enumerate(lengths)
    ]


def compared(
    requests: Iterable[ObservedRequest], thresholds: Thresholds, policy: CanaryPolicy = POLICY
) -> StepDecision:
    return decide(seen(requests, thresholds, policy), policy, 30.0)


def seen(
    requests: Iterable[ObservedRequest], thresholds: Thresholds, policy: CanaryPolicy, share: float = 0.5
) -> AnalysisState:
    state = begin_step(begin(thresholds, policy), share)
    return watched(state, requests)


def regressed(decision: StepDecision) -> list[str]:
    return [fact.name for fact in decision.judgement.evidence if fact.verdict is Verdict.NO_GO]


def test_all_that_answers_tell_is_compared() -> None:
    assert [metric.name for metric in fixed(tokens(100)).metrics] == [
        "errors",
        "slow first token",
        "slow tokens",
        "slow end to end",
        "truncated answers",
        "empty answers",
        "short answers",
        "long answers",
        "abandoned requests",
        "unfinished answers",
        "repetitive answers",
        "odd characters",
    ]


@pytest.mark.parametrize(
    ("change", "worse"),
    [
        ({}, []),
        ({"truncated": True, "finish_reason": ""}, ["truncated answers"]),
        ({"empty": True}, ["empty answers"]),
        ({"output_tokens": 4, "stream_milliseconds": 15.0}, ["short answers"]),
        ({"output_tokens": 99, "stream_milliseconds": 490.0}, ["long answers"]),
        ({"stream_milliseconds": 900.0}, ["slow tokens"]),
        ({"finish_reason": "length"}, ["unfinished answers"]),
        ({"repetition": 0.9}, ["repetitive answers"]),
        ({"odd_characters": 0.8}, ["odd characters"]),
        ({"repetition": 0.25, "odd_characters": 0.3}, []),
    ],
    ids=["nothing", "truncated", "empty", "short", "long", "slow tokens", "never stops", "loops", "garbage", "style"],
)
def test_a_candidate_whose_answers_are_odd_regresses_by_the_metric_that_says_so(change, worse) -> None:
    assert regressed(compared(tokens(120) + tokens(120, "green", **change), fixed(tokens(200)))) == worse


def test_evidence_names_the_limit_that_says_most_or_else_the_usual_one() -> None:
    thresholds = fixed(tokens(100))
    same, slower = (
        next(fact.detail for fact in compared(tokens(60) + candidate, thresholds).judgement.evidence[2:])
        for candidate in (tokens(60, "green"), tokens(60, "green", stream_milliseconds=300.0))
    )
    assert "beyond 5.0 ms (p90); e-value 1 " in same
    assert "candidate 60/60, stable 0/60 beyond 5.0 ms (p50); e-value " in slower


def test_time_per_output_token_is_that_after_the_first() -> None:
    thresholds = fixed([request(stream_milliseconds=200.0) for _ in range(20)])
    slow = next(metric for metric in thresholds.metrics if metric.name == "slow tokens")
    assert slow.limits[0].value == 10.0


def test_what_the_router_cannot_read_is_not_compared_and_said_to_be_missing() -> None:
    unread = {"output_tokens": None, "empty": None, "truncated": None, "finish_reason": ""}
    unread |= {"repetition": None, "odd_characters": None}
    thresholds = fixed([request(**unread) for _ in range(100)])
    assert [metric.name for metric in thresholds.metrics] == [
        "errors",
        "slow first token",
        "slow end to end",
        "abandoned requests",
    ]
    of_answers = "slow tokens, truncated answers, empty answers, short answers, long answers"
    metrics = f"{of_answers}, refusals, unfinished answers, repetitive answers, odd characters"
    assert f"{metrics}: 0 of stable's requests show it: too few, or all alike" in thresholds.left_out


def test_a_server_that_gives_no_finish_reasons_is_not_held_to_them() -> None:
    thresholds = fixed([request(truncated=True, finish_reason="") for _ in range(100)])
    assert "truncated answers" not in [metric.name for metric in thresholds.metrics]


def test_other_prompts_in_the_candidates_arm_are_no_regression_within_sizes_of_prompts_and_one_without() -> None:
    draws = random.Random(5)  # noqa: S311

    def one(arm: str, long_share: float) -> ObservedRequest:
        long = draws.random() < long_share
        total = (4.0 if long else 1.0) * math.exp(draws.gauss(4.0, 0.4))
        return request(arm, draws.random() * 600.0, total_milliseconds=total, request_bytes=4_000 if long else 200)

    stable = [one("blue", 0.3) for _ in range(1200)]
    arms = [one("blue", 0.3) for _ in range(1200)] + [one("green", 0.8) for _ in range(1200)]
    assert regressed(compared(arms, fixed(stable))) == []


def test_a_regression_of_one_size_of_prompts_alone_is_seen() -> None:
    def half_long(arm: str, long_takes: float) -> list[ObservedRequest]:
        sizes = [(100, 50.0), (4_000, long_takes)] * 60
        return [request(arm, n, request_bytes=size, total_milliseconds=total) for n, (size, total) in enumerate(sizes)]

    thresholds = fixed(half_long("blue", 70.0))
    assert thresholds.strata_bytes == (100,)
    assert regressed(compared(half_long("blue", 70.0) + half_long("green", 300.0), thresholds)) == ["slow end to end"]


def visits(arm: str, session: str, outcomes: Iterable[bool], began: float = 0.0) -> list[ObservedRequest]:
    return [request(arm, began + n / 10, session=session, error=bad, lost=bad) for n, bad in enumerate(outcomes)]


def test_a_session_counts_once_with_what_any_of_its_requests_showed() -> None:
    requests = visits("green", "a1", [False, True, True]) + visits("blue", "b2", [False] * 4)
    state = seen([*requests, request(at=9.0)], fixed(tokens(100), BY_SESSION), BY_SESSION)
    errors = state.metrics[0]
    assert (errors.candidate_units, errors.stable_units, errors.limits[0].candidate_events) == (1, 2, 1)
    assert state.step is not None
    assert (state.step.split.candidate, state.step.split.total, state.step.candidate.errors) == (1, 3, 2)


def test_a_session_counts_when_its_time_is_over_and_then_no_more() -> None:
    thresholds = fixed(tokens(100), BY_SESSION)
    state = begin_step(begin(thresholds, BY_SESSION), 0.5)
    counted = []
    for at in (0.0, 4.0, 6.0, 12.0, 30.0):
        look = window([request("green", at, session="a1", error=at == 4.0)], "green", thresholds, 0.0)
        state = AnalysisState.model_validate_json(observe(state, look).model_dump_json())
        counted.append((state.metrics[0].candidate_units, state.metrics[0].limits[0].candidate_events))
    assert counted == [(0, 0), (0, 0), (1, 1), (1, 1), (1, 1)]


def test_what_is_remembered_of_sessions_does_not_grow_with_their_number() -> None:
    thresholds = fixed(tokens(100), BY_SESSION)
    state = begin_step(begin(thresholds, BY_SESSION), 0.5)
    for look in range(3):
        many = [request(at=look + n / 1e5, session=f"{look:02x}{n:06x}") for n in range(20_000)]
        state = observe(state, window(many, "green", thresholds, 0.0))
    assert len(state.model_dump_json()) < 1_000_000


def test_stables_limits_are_those_of_its_sessions() -> None:
    visits = [
        request(at=float(n), session=f"{session:x}", total_milliseconds=100.0 if n == 3 else 10.0)
        for session in range(30)
        for n in range(4)
    ]
    limits = {metric.name: metric.limits for metric in fixed(visits, BY_SESSION).metrics}
    assert limits["slow end to end"][0].value == 100.0, "each session has one slow request"


@pytest.mark.parametrize(("policy", "most"), [(POLICY, 6), (BY_SESSION, 1)], ids=["request", "session"])
def test_sessions_that_fail_as_a_whole_roll_hardly_any_good_candidate_back_where_sessions_count(policy, most) -> None:
    assert sum(rolled_back(random.Random(seed), policy) for seed in range(24)) <= most  # noqa: S311


def rolled_back(draws: random.Random, policy: CanaryPolicy) -> bool:
    """A step of 20 % without any difference between the arms; 5 % of the sessions fail, all five requests of each."""
    thresholds = fixed(tokens(40), policy).model_copy(update={"metrics": (MetricLimits(name="errors"),)})
    state = begin_step(begin(thresholds, policy.model_copy(update={"error_ratio": 1.0})), 0.2)
    for second in range(0, 60, 6):
        requests = []
        for _ in range(40):
            arm, name = "green" if draws.random() < 0.2 else "blue", f"{draws.getrandbits(60):x}"
            requests += visits(arm, name, [draws.random() < 0.05] * 5, float(second))
        state = observe(state, window(requests, "green", thresholds, 0.0))
    return state.metrics[0].largest >= 1 / policy.alpha


def test_all_metrics_together_spend_alpha() -> None:
    state = begin(every_metric(POLICY), POLICY)
    assert len(state.metrics) == 13
    assert sum(metric.alpha_share for metric in state.metrics) == pytest.approx(1.0)
