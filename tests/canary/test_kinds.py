"""A fault of a rare kind of requests is seen, though it is lost among all of them."""

from __future__ import annotations

import random

import pytest
from looking import watched
from test_analysis_of_answers import request

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.analysis import begin, begin_step
from llm_pipeline.canary.evidence import StepDecision, decide
from llm_pipeline.canary.metric_events import LONG, STREAMED, WHOLE, kinds_of, rare_kinds
from llm_pipeline.canary.observations import ObservedRequest
from llm_pipeline.canary.slow_limits import Thresholds, fix_thresholds
from llm_pipeline.config.policy import CanaryPolicy

POLICY = CanaryPolicy(minimum_bake_seconds=60, maximum_bake_seconds=3600, slow_quantiles=(0.5, 0.9))


def traffic(
    arm: str, count: int, seed: int, *, streamed_fail: float = 0.002, long_takes: float = 1.0
) -> list[ObservedRequest]:
    """Ten requests a second: 4 % are streamed, a tenth is long and takes longer; 0.2 % fail."""
    draws, found = random.Random(seed), []  # noqa: S311
    for number in range(count):
        streaming, is_long = draws.random() < 0.04, draws.random() < 0.1
        total = (300.0 * long_takes if is_long else 100.0) * draws.lognormvariate(0.0, 0.4)
        fails = draws.random() < (streamed_fail if streaming else 0.002)
        size = 4000 + number % 100 if is_long else 200 + number % 100
        found.append(
            request(
                arm,
                number / 10,
                streaming=streaming,
                request_bytes=size,
                total_milliseconds=total,
                fault=fails,
                error=fails,
                lost=fails,
                first_byte_milliseconds=total / 2,
                stream_milliseconds=total / 2,
            )
        )
    return found


@pytest.fixture(scope="module")
def thresholds() -> Thresholds:
    found = fix_thresholds(traffic("blue", 3000, 1), POLICY)
    assert found is not None
    return found


def judged(thresholds: Thresholds, **of_candidate: float) -> StepDecision:
    both = [*traffic("blue", 2000, 2), *traffic("green", 2000, 3, **of_candidate)]
    state = watched(begin_step(begin(thresholds, POLICY), 0.5), both)
    return decide(state, POLICY, 300.0)


def worse(decision: StepDecision) -> set[str]:
    return {fact.name for fact in decision.judgement.evidence if fact.verdict is Verdict.NO_GO}


def test_rare_kinds_have_tests_with_limits_of_their_own(thresholds) -> None:
    titles = [metric.title for metric in thresholds.metrics if metric.kind]
    assert titles == [f"{name} of {kind}" for kind in (STREAMED, LONG) for name in ("errors", "slow end to end")]
    limits = {metric.title: metric.limits[0].value for metric in thresholds.metrics if metric.name == "slow end to end"}
    assert limits[f"slow end to end of {LONG}"] > 2.0 * limits["slow end to end"]


@pytest.mark.parametrize(
    ("change", "name"),
    [({"streamed_fail": 0.25}, f"errors of {STREAMED}"), ({"long_takes": 2.0}, f"slow end to end of {LONG}")],
    ids=["a quarter of the streams fails", "long prompts take twice as long"],
)
def test_a_fault_of_a_rare_kind_regresses_by_that_kind(thresholds, change, name) -> None:
    assert name in worse(judged(thresholds, **change))


def test_equal_arms_regress_by_no_kind(thresholds) -> None:
    assert worse(judged(thresholds)) == set()


def test_a_kind_that_does_not_come_holds_no_step_up(thresholds) -> None:
    usual = [one for one in [*traffic("blue", 800, 2), *traffic("green", 800, 3)] if not one.streaming]
    decision = decide(watched(begin_step(begin(thresholds, POLICY), 0.5), usual), POLICY, 300.0)
    assert f"errors of {STREAMED}" not in {fact.name for fact in decision.judgement.evidence}


def test_half_of_the_requests_are_no_rare_kind_and_few_ones_no_kind() -> None:
    assert rare_kinds([(STREAMED,)] * 60 + [(WHOLE,)] * 40, 50) == ()
    assert rare_kinds([(STREAMED,)] * 300 + [(WHOLE,)] * 60 + [(STREAMED, LONG)] * 10, 50) == (WHOLE,)


def test_alpha_is_spent_once(thresholds) -> None:
    state = begin(thresholds, POLICY)
    assert sum(metric.alpha_share for metric in state.metrics) == pytest.approx(1.0)


def test_a_rare_route_has_tests_of_its_own_unless_it_is_another_kind_already() -> None:
    chat = request("blue", 0.0, streaming=False, route="/chat/completions")
    text = request("blue", 0.0, streaming=False, route="/completions")
    stream = request("blue", 0.0, route="/chat/completions")
    kinds = [kinds_of(one, None) for one in [chat] * 200 + [text] * 60 + [stream] * 60]
    assert rare_kinds(kinds, 50) == (STREAMED, "requests to /completions")
