"""Anytime-valid tests for two arms of live traffic: look as often as you like, the error guarantee holds.

Rates (`RateTest`). An *event* is a request that failed, or that was slower than a limit fixed beforehand. With
`n_c` candidate and `n_s` stable requests in a window and a rate ratio `r` (candidate to stable), an event belongs
to the candidate with probability

    p(r) = n_c r / (n_c r + n_s)

whatever the event rate itself is: the nuisance parameter is conditioned away. Against the null hypothesis
`r <= r0` (side `hi`) or `r >= r0` (side `lo`), the likelihood ratio of each `r` in a grid beyond `r0` is a
non-negative supermartingale, and so is their mean

    E = mean over r of  prod over windows  (p(r) / p(r0))^e_c  ((1 - p(r)) / (1 - p(r0)))^e_s

hence P(E ever reaches 1/alpha | null) <= alpha (Ville's inequality). Window counts enter each factor, so the
traffic split may change between windows. Rejecting on side `hi` shows a regression, on side `lo` non-inferiority.

Split (`SplitTest`). The number of requests that chose the candidate's arm is Binomial(n, w). With a
Beta(k w, k (1 - w)) mixture over the alternative, the Bayes factor is an e-process for the same reason.

Sources: Lindon and Malek, "Anytime-Valid Inference for Multinomial Count Data", NeurIPS 2022; Lindon, Sanden and
Shirikian, "Rapid Regression Detection in Software Deployments through Sequential Testing", KDD 2022,
arXiv:2205.14762; Ville 1939 for the bound. The unit of the counts must be the unit of randomisation: with sticky
sessions the requests of one session are not independent, and requests must not be counted one by one.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

Side = Literal["hi", "lo"]

_FACTORS: dict[Side, tuple[float, ...]] = {
    "hi": (1.25, 1.6, 2.0, 3.0, 5.0, 8.0, 15.0, 30.0),
    "lo": (1 / 1.25, 1 / 1.6, 1 / 2.0, 1 / 3.0, 1 / 5.0, 1 / 8.0),
}
_LARGEST_EXPONENT = 700.0  # exp() of more overflows a double; 1e304 is certain enough


class RateTest(BaseModel):
    """State of one conditional-Bernoulli mixture e-process; immutable, so that a resumed test is the same test.

    Attributes:
        side: `hi` tests "not worse than `ratio` times"; `lo` tests "at least `ratio` times as bad".
        ratio: The boundary `r0` of the null hypothesis.
        log_likelihood_ratios: One sum for each alternative of the grid, natural logarithm.
        largest: The largest e-value seen so far; the test rejects on it.
        waiting: Candidate events, stable events, candidate requests and stable requests of windows in which one arm
            had no requests; they join the next window (at 1 % of little traffic, most windows are like that).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    side: Side
    ratio: Annotated[float, Field(gt=0.0)]
    log_likelihood_ratios: tuple[float, ...]
    largest: float = 1.0
    waiting: tuple[int, int, int, int] = (0, 0, 0, 0)

    @classmethod
    def start(cls, side: Side, ratio: float) -> RateTest:
        """A test without data."""
        return cls(side=side, ratio=ratio, log_likelihood_ratios=(0.0,) * len(_FACTORS[side]))

    @property
    def alternatives(self) -> tuple[float, ...]:
        """The rate ratios that the mixture bets on."""
        return tuple(self.ratio * factor for factor in _FACTORS[self.side])

    @property
    def value(self) -> float:
        """The current e-value."""
        logs = np.asarray(self.log_likelihood_ratios)
        top = float(logs.max())
        return float(math.exp(min(top, _LARGEST_EXPONENT)) * np.exp(logs - top).mean())

    def observe(
        self, *, candidate_events: int, stable_events: int, candidate_requests: int, stable_requests: int
    ) -> RateTest:
        """The test after one more window.

        A window in which one arm has no requests says nothing by itself and waits for the next one.

        Raises:
            ValueError: An arm has more events than requests, or a negative count.
        """
        if not (0 <= candidate_events <= candidate_requests and 0 <= stable_events <= stable_requests):
            raise ValueError("events must be between 0 and the arm's requests")
        new = (candidate_events, stable_events, candidate_requests, stable_requests)
        e_c, e_s, n_c, n_s = (old + more for old, more in zip(self.waiting, new, strict=True))
        if n_c == 0 or n_s == 0:
            return self.model_copy(update={"waiting": (e_c, e_s, n_c, n_s)})
        in_candidate, in_stable = _log_shares(np.asarray(self.alternatives), n_c, n_s)
        null_candidate, null_stable = _log_shares(np.asarray([self.ratio]), n_c, n_s)
        gained = e_c * (in_candidate - null_candidate) + e_s * (in_stable - null_stable)
        logs = tuple(float(value) for value in np.asarray(self.log_likelihood_ratios) + gained)
        grown = self.model_copy(update={"log_likelihood_ratios": logs, "waiting": (0, 0, 0, 0)})
        return grown.model_copy(update={"largest": max(self.largest, grown.value)})

    def rejects(self, alpha: float) -> bool:
        """Whether the null hypothesis is rejected, now or at any earlier look, at level `alpha`."""
        return self.largest >= 1.0 / alpha


class SplitTest(BaseModel):
    """State of the sample-ratio test at one intended share.

    Attributes:
        intended: Share of requests that should choose the candidate's arm.
        candidate: Requests that did.
        total: Requests of both arms.
        largest: The largest e-value seen so far.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

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


def _log_shares(
    ratios: np.ndarray[tuple[int], np.dtype[np.float64]], candidate: int, stable: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Logarithms of p(r) and 1 - p(r)."""
    both = np.log(candidate * ratios + stable)
    return np.log(candidate * ratios) - both, np.log(float(stable)) - both


def _log_bayes_factor(successes: int, total: int, share: float, concentration: float = 50.0) -> float:
    """Log Bayes factor of Beta(k w, k (1 - w)) against the point w; at w of 0 or 1 one stray request is decisive."""
    if share in (0.0, 1.0):
        strays = successes if share == 0.0 else total - successes
        return math.inf if strays else 0.0
    alpha, beta = concentration * share, concentration * (1.0 - share)
    failures = total - successes
    marginal = _log_beta(alpha + successes, beta + failures) - _log_beta(alpha, beta)
    return marginal - successes * math.log(share) - failures * math.log1p(-share)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
