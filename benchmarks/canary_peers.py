"""The rules of Flagger and of Kayenta, small, over the same looks.

Flagger (fluxcd/flagger, pkg/controller/scheduler_metrics.go): each check compares the candidate's success rate with
99 %, and its p99 with a fixed maximum; a metric without data is a failed check; five failed checks, which no success
takes back, roll back. Kayenta (spinnaker/kayenta, NetflixACAJudge.scala, MannWhitneyClassifier): a metric is High when
the lower end of the 98 % interval of the shift (Hodges and Lehmann) is above a quarter of its estimate, here on the
values of all minutes so far, every ten minutes; without data or with all values equal nothing is said.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from canary_traffic import SAME, Arm, Counts, Numbers

_CHECKS, _SUCCESS, _P99_FACTOR = 5, 0.99, 1.5
_CONFIDENCE, _TOLERANCE, _EVERY = 0.98, 0.25, 10
_FEWEST_VALUES = 5


def first_look(rejected: np.ndarray[tuple[int, int], np.dtype[np.bool_]]) -> Counts:
    """The number of the first look that rolls back, from 1; 0 for none."""
    return np.where(rejected.any(axis=1), rejected.argmax(axis=1) + 1, 0)


def flagger(candidate: Arm) -> Counts:
    """The look at which each run is rolled back; 0 for never."""
    most = _P99_FACTOR * float(SAME.quantile(np.array([0.99]))[0])
    passed = (1.0 - candidate.error_shares >= _SUCCESS) & (candidate.p99 <= most)  # false without requests
    return first_look((~passed).cumsum(axis=1) >= _CHECKS)


def kayenta(candidate: Arm, stable: Arm) -> Counts:
    """The look at which each run is judged High in errors or in p99; 0 for never."""
    rejected = np.zeros(candidate.p99.shape, dtype=bool)
    measures = (candidate.error_shares, stable.error_shares), (candidate.p99, stable.p99)
    for run, looks in enumerate(rejected):
        pairs = [(mine[run], theirs[run]) for mine, theirs in measures]
        for look in range(_EVERY, len(looks) + 1, _EVERY):
            if any(_is_high(mine[:look], theirs[:look]) for mine, theirs in pairs):
                looks[look - 1] = True
                break
    return first_look(rejected)


def _is_high(experiment: Numbers, control: Numbers) -> bool:
    mine, theirs = experiment[~np.isnan(experiment)], control[~np.isnan(control)]
    pairs = mine.size * theirs.size
    if min(mine.size, theirs.size) < _FEWEST_VALUES or mine.mean() < theirs.mean():
        return False
    normal = NormalDist().inv_cdf((1.0 + _CONFIDENCE) / 2.0)
    rank = math.floor(pairs / 2 - normal * math.sqrt(pairs * (mine.size + theirs.size + 1) / 12.0))
    shifts = np.partition((mine[:, None] - theirs).ravel(), [max(0, rank), pairs // 2])
    lower, estimate = float(shifts[max(0, rank)]), float(shifts[pairs // 2])
    return lower > 0.0 and lower > _TOLERANCE * abs(estimate)
