"""A bound of the share of requests that are late, where they are late in spells. Pure.

Who waits for the same thing is late together: spells of late requests come at random, and how many requests each holds
is random, too. With spells of geometric length their number is distributed as A. Aeppli (1924) and G. Polya (1930) say
(N. L. Johnson, A. W. Kemp and S. Kotz, Univariate Discrete Distributions, 2005, 9.7); one late request a spell is
Poisson's. The design effect of such spells is twice their mean length, less one. Dividing the counts by a design effect
instead, and asking for one late spell fewer than is allowed, gives away most of what a short test can tell.
"""

from __future__ import annotations

import math

import numpy as np

_HALVINGS = 50


def upper_share(late: int, requests: int, confidence: float, design_effect: float) -> float:
    """One-sided upper bound of the share of late requests where they come in spells of geometric length.

    Args:
        late: How many were late.
        requests: How many there were.
        confidence: Confidence of the bound.
        design_effect: The variance of their number by that of independent ones, 1 or more.
    """
    few, many = late / requests, 1.0
    spells_a_request = 2.0 / (1.0 + design_effect)
    reached = _reached(late, spells_a_request)
    for _ in range(_HALVINGS):
        middle = (few + many) / 2.0
        seldom = _chance(requests * middle * spells_a_request, reached) <= 1.0 - confidence
        few, many = (few, middle) if seldom else (middle, many)
    return many


def _reached(late: int, end: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The chance that 0, 1, 2 ... spells hold no more late requests; each ends with a certain chance at any of them."""
    from scipy import special

    spells = np.arange(late + 1)
    within = special.betainc(np.maximum(spells, 1), late - np.maximum(spells, 1) + 1.0, end) if late else np.ones(1)
    within[0] = 1.0
    return np.asarray(within, dtype=np.float64)


def _chance(spells: float, reached: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """The chance of no more late requests than were seen, where so many spells are expected."""
    from scipy import special

    numbers = np.arange(len(reached))
    logarithms = numbers * math.log(spells) - spells - special.gammaln(numbers + 1.0) if spells else -np.inf * numbers
    return float(np.exp(logarithms) @ reached)
