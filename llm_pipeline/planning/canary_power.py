"""What each step of a canary can show at the expected traffic, and what it cannot. Pure.

A step at 1 % of two requests a second sees one request of the candidate a minute: whatever it is called, it can only
catch a candidate that fails nearly all of them. Here is told, for the shortest and the longest bake of each step, the
smallest rise of errors and of slow requests that the analysis would catch there with a power of 0.9; what it would take
to prove parity; and, where the steps cannot do what they look like they do, steps and bake times that can.

The evidence of the steps before is left out, although the analysis keeps it: so much is caught at least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

from llm_pipeline.canary.analysis import KIND_ALPHA_SHARE, begin
from llm_pipeline.canary.evidence import regression_limit
from llm_pipeline.canary.metric_events import MetricName
from llm_pipeline.canary.metric_tests import MetricState
from llm_pipeline.canary.metric_tests import Parity as ParityTests
from llm_pipeline.canary.slow_limits import block_seconds, every_metric
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.planning.canary_steps import (
    KIND_SHARE,
    POWER,
    SERIOUS_RISE,
    WAVERING,
    CanaryPower,
    Caught,
    Parity,
    Proposal,
    StepPower,
)
from llm_pipeline.planning.canary_warnings import canary_warnings
from llm_pipeline.statistics.eprocess import RateTest
from llm_pipeline.statistics.sequential_power import Arms, chance_within, median_requests, median_requests_if_rare

BASE_ERROR_SHARE = 0.002
"""Errors of stable that are assumed: how rare they are is not known before."""

_JUDGED: tuple[MetricName, MetricName] = ("errors", "slow end to end")
_TYPICAL_QUANTILE = 0.9
_FINER = 1.1
_SHARES_PERCENT = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0)
_LONGEST_BAKE_SECONDS = 3600.0
_ROUND_SECONDS = 30.0


@dataclass(frozen=True)
class _Test:
    """A metric's test for regression with the e-value that it must reach, those for parity, and the event share."""

    regressed: RateTest
    limit: float
    parity: ParityTests
    event_share: float


def canary_power(policy: CanaryPolicy, rate_per_second: float) -> CanaryPower:
    """What a policy's steps can prove at so many requests a second."""
    errors, slow = _tests(policy)
    kind = replace(errors, limit=1.0 / (policy.alpha * KIND_ALPHA_SHARE))
    steps = tuple(
        _step(policy, percent, rate_per_second, (errors, slow, kind))
        for percent in policy.steps_percent
        if percent < 100.0  # noqa: PLR2004 - all traffic
    )
    proposal = _proposal(policy, rate_per_second, steps, errors)
    return CanaryPower(
        rate_per_second=rate_per_second,
        error_share=errors.event_share,
        slow_share=slow.event_share,
        block_seconds=block_seconds(policy),
        wavering_ratio=slow.regressed.ratio * math.exp(math.sqrt(4.0 * WAVERING**2 * math.log(slow.limit))),
        steps=steps,
        proposal=proposal,
        warnings=tuple(f"canary: {line}" for line in canary_warnings(policy, steps, proposal)),
    )


def _tests(policy: CanaryPolicy) -> tuple[_Test, _Test]:
    """The analysis' own tests of errors and of the time to the last byte, when every metric is compared."""
    state = begin(every_metric(policy), policy)
    errors, slow = (next(metric for metric in state.metrics if metric.name == name) for name in _JUDGED)
    quantile = min(policy.slow_quantiles, key=lambda level: abs(level - _TYPICAL_QUANTILE))
    return _test(errors, BASE_ERROR_SHARE, policy), _test(slow, 1.0 - quantile, policy)


def _test(metric: MetricState, event_share: float, policy: CanaryPolicy) -> _Test:
    return _Test(
        regressed=metric.limits[0].regressed,
        limit=regression_limit(metric, policy) * len(metric.limits),  # their mean counts, and one may have to do it
        parity=metric.parity,
        event_share=event_share,
    )


def _step(policy: CanaryPolicy, percent: float, rate: float, tests: tuple[_Test, _Test, _Test]) -> StepPower:
    share, (errors, slow, kind) = percent / 100.0, tests
    shortest, longest = (
        Caught(
            seconds=seconds,
            candidate_requests=seconds * rate * share,
            error_ratio=_smallest_ratio(errors, share, seconds * rate),
            slow_ratio=_smallest_ratio(slow, share, seconds * rate),
        )
        for seconds in (policy.minimum_bake_seconds, policy.maximum_bake_seconds)
    )
    enough = _expected_for(policy.minimum_requests) / (rate * share)
    caught = _catches_serious(errors, share, policy.minimum_bake_seconds * rate)
    return StepPower(
        percent=percent,
        outage_seconds=_expected_for(policy.consecutive_failures) / (rate * share),
        enough_seconds=enough,
        shortest=shortest,
        longest=longest,
        kind_error_ratio=_smallest_ratio(kind, share, policy.maximum_bake_seconds * rate * KIND_SHARE),
        errors=_parity(errors, policy, share, rate),
        slow=_parity(slow, policy, share, rate),
        guards=caught and enough <= policy.maximum_bake_seconds,
    )


def _smallest_ratio(test: _Test, share: float, requests: float) -> float | None:
    """The smallest of a fine grid of ratios that is caught within so many requests."""
    worst = 1.0 / test.event_share
    steps = math.floor(math.log(worst / test.regressed.ratio) / math.log(_FINER))
    ratios = [*(test.regressed.ratio * _FINER**number for number in range(1, steps + 1)), worst]

    def caught(ratio: float) -> bool:
        return chance_within(requests, test.regressed, test.limit, Arms(share, test.event_share, ratio)) >= POWER

    if not caught(worst):
        return None
    low, high = -1, len(ratios) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if caught(ratios[middle]) else (middle, high)
    return ratios[high]


def _parity(test: _Test, policy: CanaryPolicy, share: float, rate: float) -> Parity | None:
    """The sooner of the ways to prove it, which share `alpha`."""
    tests, ways = test.parity, 1 if test.parity.rare is None else 2
    requests = median_requests(tests.non_inferior, ways / policy.alpha, Arms(share, test.event_share, 1.0))
    if tests.rare is not None:
        requests = min(requests, median_requests_if_rare(tests.rare, ways / policy.alpha, test.event_share) / share)
    return None if math.isinf(requests) else Parity(requests=requests, seconds=requests / rate)


@cache
def _expected_for(count: int) -> float:
    """The mean of Poisson's distribution at which `count` or more come with the power.

    Counts more than 12 standard deviations below the mean are left out: their chance is less than e**-70.
    """
    low, high = float(count), 2.0 * count + 20.0
    while high - low > 1e-3 * high:
        middle = (low + high) / 2.0
        least = max(0, math.floor(middle - 12.0 * math.sqrt(middle)))
        logs = [number * math.log(middle) - middle - math.lgamma(number + 1) for number in range(least, count)]
        low, high = (low, middle) if 1.0 - sum(map(math.exp, logs)) >= POWER else (middle, high)
    return high


def _proposal(policy: CanaryPolicy, rate: float, steps: tuple[StepPower, ...], errors: _Test) -> Proposal | None:
    """Steps that catch a serious rise within an hour, the first of them as small as can be."""
    if all(step.guards for step in steps):
        return None
    wanted = sorted({step.percent for step in steps} | set(_SHARES_PERCENT))
    needed = {percent: _bake_seconds(policy, rate, percent / 100.0, errors) for percent in wanted}
    able = [percent for percent in wanted if needed[percent] <= _LONGEST_BAKE_SECONDS]
    if not able:
        return None
    first = next((step.percent for step in steps if step.percent in able), able[0])
    kept = tuple(step.percent for step in steps if step.percent > first)
    shortest = max(policy.minimum_bake_seconds, needed[first])
    return Proposal(
        steps_percent=(first, *kept, 100.0),
        minimum_bake_seconds=shortest,
        maximum_bake_seconds=max(policy.maximum_bake_seconds, 2.0 * shortest),
    )


def _bake_seconds(policy: CanaryPolicy, rate: float, share: float, errors: _Test) -> float:
    """The shortest bake in which a serious rise is caught and `minimum_requests` are seen."""
    seconds = _round_up(_expected_for(policy.minimum_requests) / (rate * share))
    while seconds <= _LONGEST_BAKE_SECONDS and not _catches_serious(errors, share, seconds * rate):
        seconds = _round_up(seconds * _FINER)
    return seconds


def _catches_serious(errors: _Test, share: float, requests: float) -> bool:
    arms = Arms(share, errors.event_share, SERIOUS_RISE)
    return chance_within(requests, errors.regressed, errors.limit, arms) >= POWER


def _round_up(seconds: float) -> float:
    return _ROUND_SECONDS * math.ceil(seconds / _ROUND_SECONDS)
