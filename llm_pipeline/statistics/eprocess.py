"""Anytime-valid tests for two arms of live traffic: look as often as you like, the error guarantee holds.

Rates (`Bets`). An *event* is a request that failed, or that was slower than a limit fixed beforehand. Given a block of
time with `n_c` candidate and `n_s` stable requests and `m` events of both, the number `e_c` of the candidate's events
has Fisher's noncentral hypergeometric law

    P(e_c; r)  proportional to  C(n_c, e_c) C(n_s, m - e_c) r^e_c

for an odds ratio `r` (candidate to stable), whatever the event rate itself is. Against the null hypothesis `r <= r0`,
the likelihood ratio of each `r` in a grid beyond `r0` is a non-negative supermartingale, and so is their mean

    E = mean over r of  product over blocks of  P(e_c; r) / P(e_c; r0)

hence P(E ever reaches 1 / alpha | null) <= alpha (Ville's inequality). Each block brings its own `n_c` and `n_s`, so
the traffic's split may change between blocks. Rejecting shows a regression.

Where servers waver (latencies do), requests of one moment are no independent witnesses, and two things make E smaller,
which keeps the guarantee: the blocks that favour an alternative most are left out of its product, so that no stall of
one server decides; and what remains of its logarithm, L, becomes

    1 / (1 / L + 1 / B)   with   B = log N(y; log r, 2 s^2) - log N(y; log r0, 2 s^2)

where `y` is Mantel and Haenszel's log odds ratio over all blocks, and `s^2` how much one server's log odds vary beyond
chance. For normal noise that lasts, this is the likelihood ratio of the model with a random effect of
each server: L is what chance leaves of the evidence, B what the servers leave of it.

How much servers waver (`Variation`) is learned from stable. Latencies of one server are alike from second to second:
its batches, its caches, its neighbours on the host. Two equal servers differ then for minutes, and thousands of
requests only measure that difference more precisely. So stable's time is cut into segments, and the variance of their
log odds

    y_i = log (e_i + 1/2) / (n_i - e_i + 1/2)

for `e_i` slow ones of `n_i` requests tells what the next segment of an equal server may be. Half a request on both
sides keeps a segment without any, and one with a single burst, from counting for more than they are. Chance is part of
the variance, and small in segments with many requests.

Segments are the longest, up to five minutes, of which stable's history has eight. What wavers faster is averaged away
in them; what wavers more slowly than the whole history cannot be seen by anybody.

Levels. Where hardly any of stable's traffic is left to compare with, a share is held to a level that was fixed before,
by the Bernoulli likelihood ratio of larger odds against it.

Split (`SplitTest`). The number of requests that chose the candidate's arm is Binomial(n, w). With a
Beta(k w, k (1 - w)) mixture over the alternative, the Bayes factor is an e-process for the same reason.

Sources: Lindon and Malek, "Anytime-Valid Inference for Multinomial Count Data", NeurIPS 2022; Lindon, Sanden and
Shirikian, "Rapid Regression Detection in Software Deployments through Sequential Testing", KDD 2022,
arXiv:2205.14762; Fisher, "The Logic of Inductive Inference", JRSS 1935; Ville 1939 for the bound; Mantel and Haenszel,
"Statistical Aspects of the Analysis of Data from Retrospective Studies", JNCI 1959;
Haldane, "The estimation and significance of the logarithm of a ratio of frequencies", 1956.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias

from pydantic import Field

from llm_pipeline.base.records import Frozen

if TYPE_CHECKING:  # a canary's record holds these tests, and few who read it compute any: numpy loads slowly
    import numpy as np

Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
Logs = tuple[float, ...]
OddsSums = tuple[float, float]
"""Mantel and Haenszel's two sums, whose ratio is the odds ratio."""

FACTORS = (1.25, 1.6, 2.5, 5.0, 15.0, 30.0)
"""The alternatives of each test, as multiples of the odds ratio that is tolerated."""

SEGMENT_BLOCKS = (30, 18, 12, 6, 3, 1)
FEWEST_SEGMENTS = 8

_LARGEST_EXPONENT = 700.0  # exp() of more overflows a double; 1e304 is certain enough
_CONCENTRATION = 50.0
_HALF_A_REQUEST: OddsSums = (0.125, 0.125)  # in each arm, with and without an event


class Bets(Frozen):
    """The bets against one null hypothesis at several limits, over the blocks so far.

    Attributes:
        logs: By limit and alternative: the sum of the log likelihood ratios.
        strongest: The largest of them that single blocks brought, by limit and alternative; they do not count.
        sums: By limit: for the odds ratio over all blocks.
    """

    logs: tuple[Logs, ...]
    strongest: tuple[tuple[Logs, ...], ...] = ()
    sums: tuple[OddsSums, ...]

    @classmethod
    def start(cls, limits: int, *, left_out: int = 0) -> Self:
        """No data yet; of each alternative so many blocks will not count."""
        none = ((0.0,) * len(FACTORS),) * limits
        return cls(logs=none, strongest=(none,) * left_out, sums=(_HALF_A_REQUEST,) * limits)

    def plus(self, gained: Sequence[Logs], sums: Sequence[OddsSums]) -> Self:
        """The bets after one more block, by limit."""
        import numpy as np

        strongest = self.strongest
        if strongest:
            ordered = np.sort([*strongest, gained], axis=0)[1:]
            strongest = tuple(tuple(map(tuple, one)) for one in ordered.tolist())
        return self.model_copy(
            update={
                "logs": tuple(map(tuple, np.add(self.logs, gained).tolist())),
                "strongest": strongest,
                "sums": tuple(map(tuple, np.add(self.sums, sums).tolist())),
            }
        )

    def values(self, ratio: float, variances: Sequence[float] | None = None) -> list[float]:
        """The e-value at each limit.

        Args:
            ratio: The odds ratio that is tolerated; 1 where a level is.
            variances: Of one server's log odds, by limit; None where servers do not waver.
        """
        import numpy as np

        logs = np.array(self.logs) - np.sum(self.strongest, axis=0)
        if variances is not None:
            logs = tempered(logs, np.array(self.sums), ratio, np.array(variances))
        found: list[float] = mean_of_exponentials(logs).tolist()
        return found


def mean_of_exponentials(logs: Floats | Logs) -> Floats:
    """Over the last axis; so large at most that a double holds it."""
    import numpy as np

    found: Floats = np.exp(np.minimum(logs, _LARGEST_EXPONENT)).mean(axis=-1)
    return found


def gained_by_odds(mine: tuple[int, int], theirs: tuple[int, int], ratio: float) -> Logs:
    """What one block adds to the logarithm of each alternative.

    Args:
        mine: The candidate's events and requests.
        theirs: The same of stable.
        ratio: The odds ratio that is tolerated.

    Raises:
        ValueError: An arm has more events than requests, or a negative count.
    """
    import numpy as np

    (e_c, n_c), (e_s, n_s) = mine, theirs
    if not (0 <= e_c <= n_c and 0 <= e_s <= n_s):
        raise ValueError("events must be between 0 and the arm's requests")
    events = e_c + e_s
    if not (n_c and n_s and 0 < events < n_c + n_s):
        return (0.0,) * len(FACTORS)  # every alternative says the same of that
    possible = np.arange(max(0, events - n_s), min(n_c, events) + 1, dtype=np.float64)
    before = possible[:-1]
    grows = (n_c - before) * (events - before) / ((before + 1) * (n_s - events + before + 1))
    log_ways = np.concatenate(([0.0], np.cumsum(np.log(grows))))
    log_odds = np.log(ratio * np.array((1.0, *FACTORS)))
    logs = log_ways + log_odds[:, None] * possible
    top = logs.max(axis=1)
    likelihoods = e_c * log_odds - top - np.log(np.exp(logs - top[:, None]).sum(axis=1))
    return tuple((likelihoods[1:] - likelihoods[0]).tolist())


def tempered(logs: Floats, sums: Floats, ratio: float, variances: Floats) -> Floats:
    """What each alternative's logarithm is worth where servers waver.

    Args:
        logs: By limit and alternative.
        sums: By limit, `OddsSums` as the last axis.
        ratio: The odds ratio that is tolerated.
        variances: Of one server's log odds, by limit.
    """
    import numpy as np

    beyond, steps = np.log(sums[..., :1] / sums[..., 1:] / ratio), np.log(FACTORS)
    apart = np.maximum(steps * (beyond - steps / 2.0), 1e-9)
    found: Floats = logs / (1.0 + 2.0 * variances[..., None] * np.maximum(logs, 0.0) / apart)
    return found


def sums_of_odds(mine: tuple[int, int], theirs: tuple[int, int]) -> OddsSums:
    """What one block adds to the sums; arguments as of `gained_by_odds`."""
    (e_c, n_c), (e_s, n_s) = mine, theirs
    both = max(1, n_c + n_s)
    return e_c * (n_s - e_s) / both, (n_c - e_c) * e_s / both


def sums_of_level(mine: tuple[int, int], level: float) -> OddsSums:
    """The same against a share that is tolerated: as if stable had any number of requests."""
    events, requests = mine
    return events * (1.0 - level), (requests - events) * level


def gained_by_level(mine: tuple[int, int], level: float) -> Logs:
    """What a block of the candidate's events and requests adds to each alternative of a share that is tolerated."""
    events, requests = mine
    odds = level / (1.0 - level)
    shares = (factor * odds / (1.0 + factor * odds) for factor in FACTORS)
    return tuple(
        events * math.log(share / level) + (requests - events) * math.log((1.0 - share) / (1.0 - level))
        for share in shares
    )


class Variation(Frozen):
    """Sums over stable's segments, by limit.

    Attributes:
        blocks: How many blocks of time a segment has.
        segments: Those that are complete.
        sums: Of their log odds.
        squares: Of the squares of those.
        open: Blocks, requests and events of the segment that has begun.
    """

    blocks: int
    segments: int = 0
    sums: tuple[float, ...]
    squares: tuple[float, ...]
    open: tuple[int, int, tuple[int, ...]]

    @classmethod
    def learned(cls, history: Sequence[tuple[int, tuple[int, ...]]], limits: int) -> Self:
        """From the requests and events of stable's blocks of time, oldest first."""
        fitting = (blocks for blocks in SEGMENT_BLOCKS if len(history) >= FEWEST_SEGMENTS * blocks)
        none = (0.0,) * limits
        found = cls(blocks=next(fitting, 1), sums=none, squares=none, open=(0, 0, (0,) * limits))
        for requests, events in history:
            found = found.observe(requests, events)
        return found

    def observe(self, requests: int, events: Sequence[int]) -> Self:
        """The sums after one more block of time."""
        blocks, before, events_before = self.open
        blocks, n = blocks + 1, before + requests
        e = tuple(a + b for a, b in zip(events_before, events, strict=True))
        if blocks < self.blocks or not n:
            return self.model_copy(update={"open": (blocks, n, e)})
        odds = [math.log((slow + 0.5) / (n - slow + 0.5)) for slow in e]
        return self.model_copy(
            update={
                "segments": self.segments + 1,
                "sums": tuple(a + y for a, y in zip(self.sums, odds, strict=True)),
                "squares": tuple(a + y * y for a, y in zip(self.squares, odds, strict=True)),
                "open": (0, 0, (0,) * len(e)),
            }
        )

    def variances(self) -> list[float]:
        """Of one server's log odds at each limit; 0 while nothing is known."""
        k = self.segments
        if k < 2:  # noqa: PLR2004 - a variance needs two
            return [0.0] * len(self.sums)
        both = zip(self.sums, self.squares, strict=True)
        return [max(0.0, (squares - total**2 / k) / (k - 1)) for total, squares in both]


class SplitTest(Frozen):
    """State of the sample-ratio test at one intended share.

    Attributes:
        intended: Share of requests that should choose the candidate's arm.
        candidate: Requests that did.
        total: Requests of both arms.
        largest: The largest e-value seen so far.
    """

    intended: Annotated[float, Field(ge=0.0, le=1.0)]
    candidate: int = 0
    total: int = 0
    largest: float = 1.0

    @property
    def measured(self) -> float | None:
        """The share that was seen; None without data."""
        return self.candidate / self.total if self.total else None

    @property
    def value(self) -> float:
        """The current e-value (Bayes factor of a Beta mixture against the intended share)."""
        return math.exp(min(_log_bayes_factor(self.candidate, self.total, self.intended), _LARGEST_EXPONENT))

    def observe(self, *, candidate_requests: int, stable_requests: int) -> SplitTest:
        """The test after one more window."""
        counts = {
            "candidate": self.candidate + candidate_requests,
            "total": self.total + candidate_requests + stable_requests,
        }
        grown = self.model_copy(update=counts)
        return grown.model_copy(update={"largest": max(self.largest, grown.value)})

    def rejects(self, alpha: float) -> bool:
        """Whether the measured split contradicts the intended one at level `alpha`."""
        return self.largest >= 1.0 / alpha


def _log_bayes_factor(successes: int, total: int, share: float) -> float:
    """Log Bayes factor of Beta(k w, k (1 - w)) against the point w; at w of 0 or 1 one stray request is decisive."""
    if share in (0.0, 1.0):
        strays = successes if share == 0.0 else total - successes
        return math.inf if strays else 0.0
    alpha, beta = _CONCENTRATION * share, _CONCENTRATION * (1.0 - share)
    failures = total - successes
    marginal = _log_beta(alpha + successes, beta + failures) - _log_beta(alpha, beta)
    return marginal - successes * math.log(share) - failures * math.log1p(-share)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
