"""What each step of a canary can show at the expected traffic, and what it cannot. Pure.

A step at 1 % of two requests a second sees one request of the candidate a minute: whatever it is called, it can only
catch a candidate that fails nearly all of them. For the shortest and the longest bake of each step, this gives the
smallest rise of failures and of slow requests that the analysis would catch there with a power of 0.9: its own bets
are asked about the counts that are expected, with as few events of the candidate as nine times out of ten are
exceeded. Where the steps cannot do what they seem to, it proposes steps and bake times that can.

The evidence of earlier steps is left out, although the analysis keeps it: at least this much is caught.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from llm_pipeline.base.quantities import duration
from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.analysis import LOUD_BLOCKS, regressed_at
from llm_pipeline.canary.metrics import block_seconds
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.statistics.eprocess import gained_by_odds, mean_of_exponentials


def canary_warnings(policy: CanaryPolicy, steps: Sequence[StepPower], proposal: Proposal | None) -> Iterator[str]:
    """One line for each thing that the steps seem to do and cannot."""
    if late := [step for step in steps if step.enough_seconds > policy.maximum_bake_seconds]:
        yield (
            f"minimum_requests {policy.minimum_requests} may take {_of_each(late, _enough)}: beyond "
            f"maximum_bake_seconds {policy.maximum_bake_seconds:g} a step ends undecided"
        )
    blind = [step for step in steps if not step.guards]
    if blind:
        seconds = f"in minimum_bake_seconds {policy.minimum_bake_seconds:g}"
        yield f"{seconds}, the comparison catches {_of_each(blind, _catches)}, and nothing milder"
    if proposal:
        shares = ", ".join(f"{percent:g}" for percent in proposal.steps_percent)
        yield (
            f"steps_percent [{shares}] with minimum_bake_seconds {proposal.minimum_bake_seconds:g} and "
            f"maximum_bake_seconds {proposal.maximum_bake_seconds:g} would catch {SERIOUS_RISE:g} times the errors at "
            "every step"
        )
    elif blind:
        yield f"no step would catch {SERIOUS_RISE:g} times the errors within an hour: there is too little traffic"


def _of_each(steps: Sequence[StepPower], words: Callable[[StepPower], str]) -> str:
    return ", ".join(f"{words(step)} at {step.percent:g} %" for step in steps)


def _enough(step: StepPower) -> str:
    return duration(step.enough_seconds)


def _catches(step: StepPower) -> str:
    seen, caught = step.shortest.candidate_requests, step.shortest.error_ratio
    least = "no rise of errors at all" if caught is None else f"{caught:.3g} times the errors"
    return f"{least} in {seen:.3g} candidate requests"


POWER = 0.9
SERIOUS_RISE = 50.0
"""A step should catch at least this rise of errors: at 0.2 % before, one request in ten fails."""


class Caught(Frozen):
    """What would be caught with a power of 0.9 in so much time at a step.

    Attributes:
        candidate_requests: Expected in this time.
        error_ratio: Smallest ratio of the error shares, candidate to stable; None if not even failing all requests is
            caught by comparison (the immediate guard may still catch it).
        slow_ratio: The same of the shares of slow requests; None if not even a candidate that is always slow is.
    """

    seconds: float
    candidate_requests: float
    error_ratio: float | None
    slow_ratio: float | None


class StepPower(Frozen):
    """One step below 100 %, where there is something to compare with.

    Attributes:
        outage_seconds: By then a candidate that fails every request is rolled back by the immediate guard (power 0.9).
        enough_seconds: By then the step has seen `minimum_requests` (power 0.9), without which it cannot pass.
        shortest: Within the minimum bake.
        longest: Within the maximum bake.
        guards: It can pass, and catches a serious rise of errors before it does.
    """

    percent: float
    outage_seconds: float
    enough_seconds: float
    shortest: Caught
    longest: Caught
    guards: bool


class Proposal(Frozen):
    """Steps and bake times for the policy, at which every step catches a serious rise of errors."""

    steps_percent: tuple[float, ...]
    minimum_bake_seconds: float
    maximum_bake_seconds: float


class CanaryPower(Frozen):
    """A canary before it starts.

    Attributes:
        rate_per_second: Expected traffic: the workload's.
        error_share: Errors of stable that are assumed.
        slow_share: Slow requests of stable, as the policy defines them.
        block_seconds: The unit of evidence on latencies.
        proposal: None where the configured steps do, or nothing would.
        warnings: In plain words.
    """

    rate_per_second: float
    error_share: float
    slow_share: float
    block_seconds: float
    steps: tuple[StepPower, ...]
    proposal: Proposal | None
    warnings: tuple[str, ...]


BASE_ERROR_SHARE = 0.002
"""Errors of stable that are assumed: how rare they are is not known before."""

_TYPICAL_QUANTILE = 0.9
_BELOW = 1.2816  # standard deviations below the mean: nine of ten times there are more
_MOST_REQUESTS = 1e6  # more show nothing that a person would ask for
_FINER = 1.1
_SHARES_PERCENT = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0)
_LONGEST_BAKE_SECONDS = 3600.0
_ROUND_SECONDS = 30.0


@dataclass(frozen=True)
class _Test:
    """A metric's bets: the odds ratio that is tolerated, the e-value that rejects, and stable's share of events."""

    ratio: float
    limit: float
    event_share: float

    def catches(self, rise: float, share: float, requests: float) -> bool:
        """Whether a candidate with so many times stable's events is caught within so many requests of both arms."""
        requests = min(requests, _MOST_REQUESTS)
        mine, theirs = round(requests * share), round(requests * (1.0 - share))
        event_share = min(1.0, rise * self.event_share)
        variance = mine * event_share * (1.0 - event_share)
        events = max(0, math.floor(mine * event_share - _BELOW * math.sqrt(variance)))
        gained = gained_by_odds((events, mine), (round(theirs * self.event_share), theirs), self.ratio)
        return float(mean_of_exponentials(gained)) >= self.limit


def canary_power(policy: CanaryPolicy, rate_per_second: float) -> CanaryPower:
    """What a policy's steps can prove at so many requests a second."""
    quantile = min(policy.slow_quantiles, key=lambda level: abs(level - _TYPICAL_QUANTILE))
    errors = _Test(policy.error_ratio, regressed_at(policy), BASE_ERROR_SHARE)
    limits = len(policy.slow_quantiles) + 1  # their mean counts, and one may have to do it
    slow = _Test(policy.slow_ratio, limits * regressed_at(policy), 1.0 - quantile)
    steps = tuple(
        _step(policy, percent, rate_per_second, errors, slow)
        for percent in policy.steps_percent
        if percent < 100.0  # noqa: PLR2004 - all traffic
    )
    proposal = _proposal(policy, rate_per_second, steps, errors)
    return CanaryPower(
        rate_per_second=rate_per_second,
        error_share=errors.event_share,
        slow_share=slow.event_share,
        block_seconds=block_seconds(policy),
        steps=steps,
        proposal=proposal,
        warnings=tuple(f"canary: {line}" for line in canary_warnings(policy, steps, proposal)),
    )


def _step(policy: CanaryPolicy, percent: float, rate: float, errors: _Test, slow: _Test) -> StepPower:
    share, loud_seconds = percent / 100.0, LOUD_BLOCKS * block_seconds(policy)
    shortest, longest = (
        Caught(
            seconds=seconds,
            candidate_requests=seconds * rate * share,
            error_ratio=_smallest_ratio(errors, share, seconds * rate),
            slow_ratio=_smallest_ratio(slow, share, (seconds - loud_seconds) * rate),
        )
        for seconds in (policy.minimum_bake_seconds, policy.maximum_bake_seconds)
    )
    enough = _expected_for(policy.minimum_requests) / (rate * share)
    caught = errors.catches(SERIOUS_RISE, share, policy.minimum_bake_seconds * rate)
    return StepPower(
        percent=percent,
        outage_seconds=_expected_for(policy.consecutive_failures) / (rate * share),
        enough_seconds=enough,
        shortest=shortest,
        longest=longest,
        guards=caught and enough <= policy.maximum_bake_seconds,
    )


def _smallest_ratio(test: _Test, share: float, requests: float) -> float | None:
    """The smallest of a fine grid of ratios that is caught within so many requests."""
    worst = 1.0 / test.event_share
    steps = math.floor(math.log(worst / test.ratio) / math.log(_FINER))
    ratios = [*(test.ratio * _FINER**number for number in range(1, steps + 1)), worst]
    if not test.catches(worst, share, requests):
        return None
    low, high = -1, len(ratios) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if test.catches(ratios[middle], share, requests) else (middle, high)
    return ratios[high]


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
    while seconds <= _LONGEST_BAKE_SECONDS and not errors.catches(SERIOUS_RISE, share, seconds * rate):
        seconds = _round_up(seconds * _FINER)
    return seconds


def _round_up(seconds: float) -> float:
    return _ROUND_SECONDS * math.ceil(seconds / _ROUND_SECONDS)
