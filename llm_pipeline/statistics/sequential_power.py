"""How soon one of the canary's anytime-valid tests decides, without a simulation. Pure.

    test = RateTest.start(1.5)
    arms = Arms(share=0.05, event_share=0.002, ratio=10.0)
    chance_within(6000, test, 20.0, arms)      # 0.71: tenfold errors are caught within 6,000 requests

The test bets on which arm the next event comes from, so that its e-value depends on two counts alone: events of the
candidate and of stable. While events are few, its first passage is counted event by event, as a random walk below a
boundary. Where they are many, the walk is a Brownian motion with drift, whose first passage has the inverse Gaussian
distribution (A. Wald, Sequential Analysis, 1947); its drift and barrier are those of the mixture where the mean path
crosses. A window of traffic brings few events, so that looking at its end or at each event is nearly the same.

Common events are tested by their odds. The derivative of that conditional log-likelihood by the log odds is the number
of the candidate's events less its expectation, hence all that is needed are integrals over the log odds between the
null and each alternative, at the traffic's own shares.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.statistics.eprocess import RateTest

_EXACT_EVENTS = 250
_LARGEST_EXPONENT = 700.0
_NODES = 12
_NEARLY = 1e-12
_NORMAL = NormalDist()
_Numbers = NDArray[np.float64]
_Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Arms:
    """The traffic of a step, as it is in truth.

    Attributes:
        share: The candidate's share of the requests, below 1.
        event_share: Share of stable's requests that are events.
        ratio: The same of the candidate, by that of stable.
    """

    share: float
    event_share: float
    ratio: float

    @property
    def candidate_event_share(self) -> float:
        """No more than all of its requests."""
        return min(1.0, self.event_share * self.ratio)

    @property
    def events_per_request(self) -> float:
        """Of both arms together."""
        return self.share * self.candidate_event_share + (1.0 - self.share) * self.event_share

    @property
    def from_candidate(self) -> float:
        """Chance that an event is the candidate's."""
        return self.share * self.candidate_event_share / self.events_per_request


def chance_within(requests: float, test: RateTest, limit: float, arms: Arms) -> float:
    """Chance that the test's e-value reaches `limit` within so many requests of both arms together.

    Args:
        requests: Of both arms.
        test: Without data.
        limit: The e-value that rejects.
        arms: What is true.
    """
    events = requests * arms.events_per_request
    if events > _EXACT_EVENTS or test.law == "odds":
        drift = _drift(test, limit, arms)
        return drift.reached_within(requests) if drift else 0.0
    most = math.ceil(events + 5.0 * math.sqrt(events) + 5.0)
    fewer, term, chance = 0.0, math.exp(-events), 0.0  # the number of events is Poisson's
    for number, reached in enumerate(_first_passage(test, limit, arms, most)):
        chance += reached * (1.0 - fewer)
        fewer = min(1.0, fewer + term)
        term *= events / (number + 1)
    return min(1.0, chance)


def _first_passage(test: RateTest, limit: float, arms: Arms, most: int) -> Iterator[float]:
    """Chance that the limit is reached with event number 0, 1, 2, ... of both arms; events for the bet are counted."""
    chance = arms.from_candidate
    going, before = np.zeros(most + 2), 1
    going[0] = 1.0
    known = _needed(_Bet.of(test, limit, arms.share), 1 << most.bit_length())  # as many for numbers that are near
    yield 0.0
    for events, needed in enumerate(known[:most], start=1):
        going[1 : before + 1] = going[1 : before + 1] * (1.0 - chance) + going[:before] * chance
        going[0] *= 1.0 - chance
        yield float(going[needed]) if needed <= events else 0.0
        going[needed] = 0.0
        before = needed


@dataclass(frozen=True)
class _Bet:
    """What an event adds to each alternative's logarithm, when it is one for the bet and when it is not."""

    favour: tuple[float, ...]
    against: tuple[float, ...]
    log_needed: float

    @classmethod
    def of(cls, test: RateTest, limit: float, share: float) -> _Bet:
        favour, against = _gains(test, share)
        return cls(favour, against, math.log(limit * len(favour)))

    def between(self, events: _Counts) -> tuple[_Counts, _Counts]:
        """Events for the bet that are too few, and those that suffice, or one more than all.

        The best alternative's likelihood is no more than the sum over all, and no less than their mean.
        """
        favour, against = np.array(self.favour), np.array(self.against)
        rest = np.outer(events, against)
        enough = ((self.log_needed - rest) / (favour - against)).min(axis=1)
        least = ((self.log_needed - math.log(len(self.favour)) - rest) / (favour - against)).min(axis=1)
        many = np.clip(np.ceil(enough) + 1.0, 1.0, events + 1.0).astype(np.int64)  # one more, for what is rounded
        return np.clip(np.floor(least) - 1.0, 0.0, many - 1.0).astype(np.int64), many

    def won(self, favourable: _Counts, events: _Counts) -> NDArray[np.bool_]:
        """Whether the mean over the alternatives reaches the limit."""
        logs = np.outer(favourable, self.favour) + np.outer(events - favourable, self.against)
        reached: NDArray[np.bool_] = np.logaddexp.reduce(logs, axis=1) >= self.log_needed
        return reached


@lru_cache(maxsize=64)
def _needed(bet: _Bet, most: int) -> list[int]:
    """Events for the bet by which it is won, after 1, 2, ... events; one more than all of them where none suffice.

    It is the same whatever is true of the arms: a search asks for many of them.
    """
    events = np.arange(1, most + 1)
    few, many = bet.between(events)
    while (many - few > 1).any():
        middle = (few + many) // 2
        won = bet.won(middle, events)
        few, many = np.where(won, few, middle), np.where(won, middle, many)
    found: list[int] = many.tolist()
    return found


@dataclass(frozen=True)
class _Drift:
    """A Brownian motion: mean and variance that a request adds, and the barrier."""

    mean: float
    variance: float
    barrier: float

    def reached_within(self, requests: float) -> float:
        """The inverse Gaussian distribution function."""
        spread = math.sqrt(self.variance * requests)
        way = self.mean * requests
        reflected = min(_LARGEST_EXPONENT, 2.0 * self.mean * self.barrier / self.variance)
        back = math.exp(reflected) * _NORMAL.cdf(-(way + self.barrier) / spread)
        return min(1.0, _NORMAL.cdf((way - self.barrier) / spread) + back)


def _drift(test: RateTest, limit: float, arms: Arms) -> _Drift | None:
    """The mixture's motion where its mean path reaches the limit; None where the mean path never does."""
    mine, theirs = arms.share * arms.candidate_event_share, (1.0 - arms.share) * arms.event_share
    if test.law == "odds":
        candidate, stable, means = _gains_by_odds(test, arms)
    else:
        candidate, stable = _gains(test, arms.share)
        means = tuple(mine * a + theirs * b for a, b in zip(candidate, stable, strict=True))
    spreads = (mine * (1.0 - arms.candidate_event_share), theirs * (1.0 - arms.event_share))
    return _mixture(means, (candidate, stable), spreads, limit)


def _mixture(
    means: Sequence[float], gains: Sequence[Sequence[float]], spreads: Sequence[float], limit: float
) -> _Drift | None:
    """The motion of a mean of likelihood ratios.

    Args:
        means: What a request adds to the logarithm of each.
        gains: What an event adds to each, by kind of event.
        spreads: Variance of the number of events that a request adds, by kind of event.
        limit: What the mean must reach.
    """
    if max(means) <= 0.0:
        return None
    requests, nearer = math.inf, math.log(limit * len(means)) / max(means)
    while nearer < requests * (1.0 - _NEARLY):  # Newton's method from above: the logarithm of the mean is convex
        requests = nearer
        likelihoods = [math.exp(requests * (mean - max(means))) for mean in means]
        weights = [likelihood / sum(likelihoods) for likelihood in likelihoods]
        mean, *together = (sum(map(operator.mul, weights, values)) for values in (means, *gains))
        log_mean = requests * max(means) + math.log(sum(likelihoods) / len(means))
        nearer = requests - (log_mean - math.log(limit)) / mean
    variance = sum(spread * gain**2 for spread, gain in zip(spreads, together, strict=True))
    return _Drift(mean, variance, mean * nearer)


def _gains(test: RateTest, share: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Log-likelihood ratios of one event, the candidate's and stable's, for each alternative."""

    def from_candidate(ratio: float) -> float:
        return share * ratio / (share * ratio + 1.0 - share)

    null = from_candidate(test.ratio)
    chances = [from_candidate(ratio) for ratio in test.alternatives]
    candidate = tuple(math.log(chance / null) for chance in chances)
    return candidate, tuple(math.log((1.0 - chance) / (1.0 - null)) for chance in chances)


def _gains_by_odds(test: RateTest, arms: Arms) -> tuple[tuple[float, ...], ...]:
    """What an event of the candidate and one of stable add to each alternative, and what a request adds on average."""
    nodes, weights = _quadrature()
    ends = np.log(np.array(test.alternatives) / test.ratio)[:, None]
    odds = test.ratio * np.exp(ends * (nodes + 1.0) / 2.0)
    weights = weights * ends / 2.0
    expected, stable = _expected_shares(odds, arms)
    varies, varies_too = arms.share * expected * (1.0 - expected), (1.0 - arms.share) * stable * (1.0 - stable)
    against = -(weights * varies / (varies + varies_too)).sum(axis=1)
    mean = arms.share * (weights * (arms.candidate_event_share - expected)).sum(axis=1)
    return tuple(against + ends[:, 0]), tuple(against), tuple(mean)


@cache
def _quadrature() -> tuple[_Numbers, _Numbers]:
    """Nodes and weights of Gauss and Legendre, from -1 to 1, by G. H. Golub and J. H. Welsch (1969).

    `numpy.polynomial` has them, and is imported for as long as all of this takes.
    """
    numbers = np.arange(1.0, _NODES)
    beside = np.diag(numbers / np.sqrt(4.0 * numbers**2 - 1.0), 1)
    nodes, vectors = np.linalg.eigh(beside + beside.T)
    return nodes, 2.0 * vectors[0] ** 2


def _expected_shares(odds: _Numbers, arms: Arms) -> tuple[_Numbers, _Numbers]:
    """Event shares of the candidate and of stable that have this odds ratio and make as many events as are seen."""
    events, share = arms.events_per_request, arms.share
    linear = 1.0 - share - events + odds * (events + share)
    candidate = 2.0 * odds * events / (linear + np.sqrt(linear**2 + 4.0 * share * (1.0 - odds) * odds * events))
    return candidate, (events - share * candidate) / (1.0 - share)
