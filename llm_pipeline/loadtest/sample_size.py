"""How many requests a statement about a share needs, and whether a load test will have them. Pure.

    needed_requests(0.99, 0.99)              # 459: all of them good
    needed_requests(0.99, 0.99, misses=5)    # 1307

Exact binomial, as in MLPerf Inference's early stopping (mlcommons/inference, loadgen/early_stopping.cc): enough for the
lower bound of Clopper and Pearson (1934) to attain. Several looks at growing data split the error evenly (Bonferroni).
Correlated requests count for fewer (`design_effect.py`); how many, only a measurement shows.

A test cannot see a stall that does not come while it runs. Stalls that come at random, once per period on average, all
stay away for a time T with probability exp(-T / period) (the "rule of three" of J. A. Hanley and A.
Lippman-Hand, JAMA 249, 1983; exact for a Poisson process, F. Garwood, Biometrika 28, 1936). So a GO names the period
that its time excludes. This gets half of the policy's error; the other half covers stalls that were seen but given too
little weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.quantities import duration
from llm_pipeline.base.records import Frozen
from llm_pipeline.config.policy import LoadTestPolicy
from llm_pipeline.config.workload import Workload
from llm_pipeline.loadtest.duration import CONFIRMATION_MULTIPLE, EXTENSIONS
from llm_pipeline.statistics.intervals import clopper_pearson_upper, critical_value

if TYPE_CHECKING:
    from llm_pipeline.loadtest.records import Records

MOST_RATES = 3
"""Rates that a confirmation tries: from the one that the search found down to the workload's."""

_REQUESTS_A_DEGREE = 2.0
"""Independent requests that a sample must be equivalent to, per degree of freedom of its design effect."""


@dataclass(frozen=True)
class ShareBounds:
    """One-sided bounds of a share, each at the requested confidence.

    Attributes:
        worth: The effective sample size, in independent requests.
    """

    lower: float
    upper: float
    worth: float


def share_bounds(good: int, requests: int, confidence: float, design_effect: float = 1.0) -> ShareBounds:
    """Exact binomial bounds of the share of good requests, whose number is divided by the design effect."""
    worth = worth_of(requests, confidence, design_effect)
    hits = worth * good / requests
    lower = 1.0 - clopper_pearson_upper(worth - hits, worth, confidence)
    return ShareBounds(lower, clopper_pearson_upper(hits, worth, confidence), worth)


def worth_of(requests: int, confidence: float, design_effect: float) -> float:
    """The effective sample size: for how many independent requests these count.

    Dividing the counts by the design effect, and by what Student's quantile is beyond the normal one, is E. L. Korn and
    B. I. Graubard's interval (Survey Methodology 24, 1998): a design effect is an estimate of few spells of waiting.
    """
    worth = requests / design_effect
    if design_effect <= 1.0:
        return worth
    degrees = max(1.0, worth / _REQUESTS_A_DEGREE)
    return worth * (critical_value(confidence) / critical_value(confidence, degrees)) ** 2


def shown_above(failed: int, requests: int, policy: LoadTestPolicy) -> bool:
    """Whether significantly more requests failed than the policy tolerates."""
    bounds = share_bounds(failed, max(1, requests), policy.confidence)
    return bounds.lower > policy.maximum_error_fraction


def confidence_of_a_look(confidence: float, looks: int) -> float:
    """The confidence of each of several looks that together keep `confidence`."""
    return 1.0 - (1.0 - confidence) / looks


def needed_requests(attainment: float, confidence: float, *, misses: int = 0, looks: int = 1) -> int:
    """The fewest independent requests that show `attainment` when so many of them miss.

    Args:
        attainment: Share of requests that must be good.
        confidence: Confidence of the statement.
        misses: Requests that were not good.
        looks: Looks at the data that share the error.
    """
    level = confidence_of_a_look(confidence, looks)
    few, many = misses, misses + 1
    while not _shows(many, misses, attainment, level):
        few, many = many, 2 * many
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if _shows(middle, misses, attainment, level) else (middle, many)
    return many


def _shows(requests: int, misses: int, attainment: float, confidence: float) -> bool:
    """Whether this many misses show the attainment: as few are rare enough at exactly that share."""
    return _chance_of_so_few(misses, requests, 1.0 - attainment) <= 1.0 - confidence


def _chance_of_so_few(misses: int, requests: int, share: float) -> float:
    """The binomial distribution function, computed without scipy: importing it would slow every plan down."""
    if share >= 1.0:
        return float(misses >= requests)
    term = requests * math.log1p(-share)
    chance, odds = math.exp(term), math.log(share) - math.log1p(-share)
    for number in range(1, misses + 1):
        term += math.log((requests - number + 1) / number) + odds
        chance += math.exp(term)
    return chance


class SampleSize(Frozen):
    """What the confirmation at the workload's rate needs, and what it has.

    Attributes:
        needed: Requests that show the attainment when none misses, and the tolerated share of failures when none fails,
            each independent of the others.
        needed_with_misses: The same when half of the tolerated share of misses does miss.
        first_look: Requests of the confirmation.
        last_look: The same with all its extensions.
        looks: Looks that share the error.
        excluded_period_seconds: Stalls that are rarer than one in this time are not excluded by the first look.
    """

    needed: int
    needed_with_misses: int
    first_look: int
    last_look: int
    looks: int
    excluded_period_seconds: float


def sample_size(workload: Workload, policy: LoadTestPolicy) -> SampleSize:
    """The sample sizes of a load test that confirms the workload's rate and no other."""
    looks = looks_at_most(policy)
    stay = 1.0 - workload.cancelled_share
    seconds = workload.duration_seconds * CONFIRMATION_MULTIPLE
    first = workload.rate_per_second * seconds * stay
    least = max(policy.minimum_requests, needed_requests(policy.attainment, policy.confidence, looks=looks))
    if policy.maximum_error_fraction:
        least = max(least, needed_requests(1.0 - policy.maximum_error_fraction, policy.confidence, looks=looks))
    return SampleSize(
        needed=least,
        needed_with_misses=max(least, _with_misses(policy, looks)),
        first_look=math.floor(first),
        last_look=math.floor(first * EXTENSIONS),
        looks=looks,
        excluded_period_seconds=excluded_period(seconds, policy.confidence),
    )


def looks_at_most(policy: LoadTestPolicy) -> int:
    """Looks that a confirmation may take, at all the rates that it may try."""
    return EXTENSIONS * (1 if policy.search is None else MOST_RATES)


def _with_misses(policy: LoadTestPolicy, looks: int) -> int:
    """Requests that suffice when a miss comes in every second place that may have one."""
    misses = 0
    while True:
        needed = needed_requests(policy.attainment, policy.confidence, misses=misses, looks=looks)
        if misses >= needed * (1.0 - policy.attainment) / 2.0:
            return needed
        misses += 1


def require_enough(workload: Workload, policy: LoadTestPolicy) -> None:
    """Refuse a load test that can never say GO, whatever the server does.

    Raises:
        ConfigError: Even its last look has too few requests.
    """
    size = sample_size(workload, policy)
    claim = f"{100 * policy.attainment:g} % at {100 * policy.confidence:g} % confidence"
    if policy.maximum_error_fraction:
        claim += f", with at most {100 * policy.maximum_error_fraction:g} % failed"
    if size.last_look < size.needed:
        needed_seconds = workload.duration_seconds * size.needed / max(1, size.last_look)
        raise ConfigError(
            f"{size.last_look} requests can never show {claim}: {size.needed} are needed when none misses, "
            f"in {size.looks} looks",
            where="workload and policy.load_test",
            hint=f"duration_seconds of {math.ceil(needed_seconds)} or more, a higher rate, a lower attainment or "
            "confidence, or a larger maximum_error_fraction; double that leaves room for misses",
        )


def excluded_period(seconds: float, confidence: float) -> float:
    """The longest period, in seconds, of stalls that would have shown within this many seconds."""
    return seconds / math.log(2.0 / (1.0 - confidence))


def watched_seconds(windows: Sequence[Records]) -> float:
    """How long requests arrived in windows."""
    spans = [(len(window), float(np.ptp(window["arrives_at"]))) for window in windows if len(window) > 1]
    return sum(span * count / (count - 1) for count, span in spans)


def not_excluded(windows: Sequence[Records], policy: LoadTestPolicy) -> str:
    """Which stalls a GO does not exclude, in a sentence."""
    period = excluded_period(watched_seconds(windows), policy.confidence)
    return f"Stalls rarer than one in {duration(period)} are not excluded."
