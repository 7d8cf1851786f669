"""Anytime-valid tests for two arms of live traffic: look as often as you like, the error guarantee holds.

Rates (`RateTest`). An *event* is a request that failed, or that was slower than a limit fixed beforehand. With
`n_c` candidate and `n_s` stable requests in a window and a rate ratio `r` (candidate to stable), an event belongs
to the candidate with probability

    p(r) = n_c r / (n_c r + n_s)

whatever the event rate itself is: the nuisance parameter is conditioned away. Against the null hypothesis
`r <= r0`, the likelihood ratio of each `r` in a grid beyond `r0` is a non-negative supermartingale, and so is their
mean

    E = mean over r of  prod over windows  (p(r) / p(r0))^e_c  ((1 - p(r)) / (1 - p(r0)))^e_s

hence P(E ever reaches 1/alpha | null) <= alpha (Ville's inequality). Window counts enter each factor, so the
traffic split may change between windows. Rejecting shows a regression.

Where events are common (half of all requests exceed the median), a ratio of shares is bounded and the binomial law is
wasteful. There `r` is a ratio of odds, and the law of e_c given all events m of the window is Fisher's noncentral
hypergeometric one, P(e_c) proportional to C(n_c, e_c) C(n_s, m - e_c) r^e_c. For rare events both are the same.

Strata (prompts of one length, say) are windows of their own: each has its own n_c and n_s, and all their likelihood
ratios are multiplied for each alternative. Arms with different mixes of strata are then no regression.

Blocks and clients. Where events come in bursts or waver with time (latencies do), requests of one moment are no
independent witnesses, and neither are those of one client. So no block of time adds more than `most_a_block` to a
logarithm, and no client decides (see `Sums`). What remains, servers that waver for longer than a block, `tempered`
allows for: it multiplies the logarithms by what a request's evidence counts (see `spread`), by their `information`.

Levels (`LevelTest`). Where hardly anything is left to compare with, a share is held to a level that was fixed before,
by the Bernoulli likelihood ratio of larger odds against it.

Split (`SplitTest`). The number of requests that chose the candidate's arm is Binomial(n, w). With a
Beta(k w, k (1 - w)) mixture over the alternative, the Bayes factor is an e-process for the same reason.

Sources: Lindon and Malek, "Anytime-Valid Inference for Multinomial Count Data", NeurIPS 2022; Lindon, Sanden and
Shirikian, "Rapid Regression Detection in Software Deployments through Sequential Testing", KDD 2022,
arXiv:2205.14762; Fisher, "The Logic of Inductive Inference", JRSS 1935; Ville 1939 for the bound. The unit of the
counts must be the unit of randomisation: with sticky sessions the requests of one session are not independent, and
requests must not be counted one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field

from llm_pipeline.base.records import Frozen

if TYPE_CHECKING:  # a canary's record holds these tests, and few who read it compute any: numpy loads slowly
    import numpy as np

Law = Literal["rates", "odds"]
Counts = tuple[int, int, int, int]
Floats: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.float64]]"

_FACTORS = (1.25, 1.6, 2.0, 3.0, 5.0, 8.0, 15.0, 30.0)
_LARGEST_EXPONENT = 700.0  # exp() of more overflows a double; 1e304 is certain enough
_CONCENTRATION = 50.0


Logs = tuple[float, ...]


class Sums(Frozen):
    """Sums of log likelihood ratios, one for each alternative, in which no moment and no client decides.

    A block of time adds no more than so much: a smaller likelihood ratio keeps a supermartingale. And where clients are
    told apart, each belongs to one of a few groups by its fingerprint, and the e-value is the smallest of those without
    one of the groups. Each of these is an e-process of the other groups' traffic, so their smallest is below one; and
    whatever a client does, there is one in which it has no part.

    Attributes:
        total: Of all blocks that ended.
        without: The same without each group of clients that was seen.
        block: What the block that has begun adds, by group, before any limit.
    """

    total: Logs
    without: dict[str, Logs] = Field(default_factory=dict)
    block: dict[str, Logs] = Field(default_factory=dict)

    def add(self, gained: Sequence[float], group: str = "") -> Sums:
        """The sums after a group's traffic in the block that has begun."""
        before = self.block.get(group) or (0.0,) * len(self.total)
        return self.model_copy(update={"block": {**self.block, group: _plus(before, gained)}})

    def seen(self, group: str) -> Sums:
        """The sums after traffic of a group that adds nothing."""
        known = not group or group in self.without or group in self.block
        return self if known else self.add((0.0,) * len(self.total), group)

    def block_ends(self, most: float) -> Sums:
        """The sums after the block, which adds so much at most."""
        if not self.block:
            return self
        return Sums(total=self._with_block(None, most), without=self._without(most))

    def tempered(self, independence: float, most: float) -> float:
        """The e-value with a request's evidence raised to a power between 0 and 1.

        Requests of unknown clients form one group among the others.
        """
        without = self._without(most) if self.block else self.without
        sums = list(without.values()) if any(without) else [self._with_block(None, most)]
        return min(mean_of_exponentials([independence * log for log in logs]) for logs in sums)

    def _without(self, most: float) -> dict[str, Logs]:
        return {group: self._with_block(group, most) for group in {**self.without, **self.block}}

    def _with_block(self, left_out: str | None, most: float) -> Logs:
        """A group that was not seen before has no part in the total."""
        import numpy as np

        before = self.total if left_out is None else self.without.get(left_out, self.total)
        gained = np.zeros(len(before))
        for group, logs in self.block.items():
            if group != left_out:
                gained += logs
        return _plus(before, np.minimum(gained, most).tolist())


def mean_of_exponentials(logs: Sequence[float]) -> float:
    """Of natural logarithms; so large at most that a double holds it."""
    import numpy as np

    values = np.asarray(logs)
    top = float(values.max())
    return float(math.exp(min(top, _LARGEST_EXPONENT)) * np.exp(values - top).mean())


def _plus(one: Sequence[float], other: Sequence[float]) -> Logs:
    return tuple(float(a + b) for a, b in zip(one, other, strict=True))


class RateTest(Frozen):
    """State of one conditional-Bernoulli mixture e-process; immutable, so that a resumed test is the same test.

    Attributes:
        ratio: The boundary `r0` of the null hypothesis: not worse than so many times.
        law: `rates` for events that are rare, `odds` for those that may be common; see the module.
        sums: Natural logarithms, one for each alternative of the grid.
        largest: The largest e-value seen so far; the test rejects on it.
        most_a_block: The most that one block of time may add to a logarithm; None for no such limit.
        information: Fisher's, of the counts about the logarithm of the ratio.
        waiting: By stratum: candidate events, stable events, candidate requests and stable requests of windows in which
            one arm had no requests; they join the next window (at 1 % of little traffic, most windows are like that).
    """

    ratio: Annotated[float, Field(gt=0.0)]
    law: Law = "rates"
    sums: Sums
    largest: float = 1.0
    most_a_block: float | None = None
    information: float = 0.0
    waiting: dict[str, Counts] = Field(default_factory=dict)

    @classmethod
    def start(cls, ratio: float, law: Law = "rates", most_a_block: float | None = None) -> RateTest:
        """A test without data."""
        return cls(ratio=ratio, law=law, sums=Sums(total=(0.0,) * len(_FACTORS)), most_a_block=most_a_block)

    @property
    def alternatives(self) -> tuple[float, ...]:
        """The rate ratios that the mixture bets on."""
        return tuple(self.ratio * factor for factor in _FACTORS)

    @property
    def value(self) -> float:
        """The current e-value."""
        return self.tempered(1.0)

    def tempered(self, independence: float) -> float:
        """The current e-value where a request's evidence counts for so much, between 0 and 1."""
        return self.sums.tempered(independence, self.most(1))

    def block_ends(self, blocks: int = 1) -> RateTest:
        """The test after the end of a block of time, or of several that cannot be told apart."""
        return self.model_copy(update={"sums": self.sums.block_ends(self.most(blocks))})

    def observe(
        self,
        *,
        candidate_events: int,
        stable_events: int,
        candidate_requests: int,
        stable_requests: int,
        stratum: str = "",
        group: str = "",
    ) -> RateTest:
        """The test after one more window of one stratum, and of one group of clients.

        A window in which one arm has no requests says nothing by itself and waits for the next one.

        Raises:
            ValueError: An arm has more events than requests, or a negative count.
        """
        if not (0 <= candidate_events <= candidate_requests and 0 <= stable_events <= stable_requests):
            raise ValueError("events must be between 0 and the arm's requests")
        new = (candidate_events, stable_events, candidate_requests, stable_requests)
        stratum = f"{stratum}/{group}" if group else stratum
        held = self.waiting.get(stratum, (0, 0, 0, 0))
        counts = (held[0] + new[0], held[1] + new[1], held[2] + new[2], held[3] + new[3])
        waiting = {name: waits for name, waits in self.waiting.items() if name != stratum}
        if not all(counts[2:]):
            return self.model_copy(update={"waiting": {**waiting, stratum: counts}})
        if not any(counts[:2]):  # no events: every alternative says the same of that
            sums = self.sums.seen(group)
            changed = held != (0, 0, 0, 0) or sums is not self.sums
            return self.model_copy(update={"waiting": waiting, "sums": sums}) if changed else self
        gained = (_gained_by_odds if self.law == "odds" else _gained_by_rates)(self.alternatives, self.ratio, counts)
        update = {
            "sums": self.sums.add(gained.tolist(), group),
            "information": self.information + _information(counts),
            "waiting": waiting,
        }
        grown = self.model_copy(update=update)
        return grown.model_copy(update={"largest": max(self.largest, grown.value)})

    def most(self, blocks: int) -> float:
        """The most that so many blocks of time may add to a logarithm."""
        return math.inf if self.most_a_block is None else self.most_a_block * blocks

    def rejects(self, alpha: float) -> bool:
        """Whether the null hypothesis is rejected, now or at any earlier look, at level `alpha`."""
        return self.largest >= 1.0 / alpha


class LevelTest(Frozen):
    """State of the test "the candidate's share of events is at most `limit`"; its rejection shows that it is larger.

    Attributes:
        limit: The share that is tolerated.
        sums: Natural logarithms, one for each larger share of the grid.
        information: Fisher's, about the logarithm of the odds.
    """

    limit: Annotated[float, Field(gt=0.0, lt=1.0)]
    sums: Sums = Sums(total=(0.0,) * len(_FACTORS))
    information: float = 0.0

    def observe(self, *, events: int, requests: int, group: str = "") -> LevelTest:
        """The test after one more window of the candidate's, of one group of clients."""
        odds = self.limit / (1.0 - self.limit)
        shares = tuple(factor * odds / (1.0 + factor * odds) for factor in _FACTORS)
        gained = [
            events * math.log(share / self.limit) + (requests - events) * math.log((1.0 - share) / (1.0 - self.limit))
            for share in shares
        ]
        information = self.information + requests * self.limit * (1.0 - self.limit)
        return self.model_copy(update={"sums": self.sums.add(gained, group), "information": information})

    def block_ends(self, most: float) -> LevelTest:
        """The test after a block of time, which adds so much at most to a logarithm."""
        return self.model_copy(update={"sums": self.sums.block_ends(most)})

    def tempered(self, independence: float, most: float) -> float:
        """The current e-value where a request's evidence counts for so much, between 0 and 1."""
        return self.sums.tempered(independence, most)


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


def _information(counts: Counts) -> float:
    """Of the hypergeometric law about the logarithm of its ratio, where that ratio is 1."""
    e_c, e_s, n_c, n_s = counts
    events, both = e_c + e_s, n_c + n_s
    return events * (both - events) * n_c * n_s / (both * both * (both - 1.0))


def _gained_by_rates(alternatives: tuple[float, ...], null: float, counts: Counts) -> Floats:
    """Logarithms of the likelihood ratios under the binomial law."""
    import numpy as np

    e_c, e_s, n_c, n_s = counts
    ratios = np.asarray(alternatives)
    smaller = math.log(n_c * null + n_s) - np.log(n_c * ratios + n_s)
    gained: Floats = e_c * (np.log(ratios / null) + smaller) + e_s * smaller
    return gained


def _gained_by_odds(alternatives: tuple[float, ...], null: float, counts: Counts) -> Floats:
    """Logarithms of the likelihood ratios under Fisher's noncentral hypergeometric law."""
    import numpy as np

    e_c, e_s, n_c, n_s = counts
    events = e_c + e_s
    possible = np.arange(max(0, events - n_s), min(n_c, events) + 1, dtype=np.float64)
    before = possible[:-1]
    grows = (n_c - before) * (events - before) / ((before + 1) * (n_s - events + before + 1))
    log_ways = np.concatenate(([0.0], np.cumsum(np.log(grows))))
    log_odds = np.log(np.asarray((null, *alternatives)))
    logs = log_ways + log_odds[:, None] * possible
    top = logs.max(axis=1)
    log_likelihoods = e_c * log_odds - top - np.log(np.exp(logs - top[:, None]).sum(axis=1))
    gained: Floats = log_likelihoods[1:] - log_likelihoods[0]
    return gained


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
