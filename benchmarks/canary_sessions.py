"""False rollbacks when users stick to an arm: their requests are alike, and counting them one by one is wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from canary_ours import e_values
from canary_traffic import LOOKS, Counts

from llm_pipeline.statistics.eprocess import RateTest

_SESSIONS_A_LOOK, _SHARE, _EVENT_SHARE = 40, 0.05, 0.01


@dataclass(frozen=True)
class Sessions:
    """Sessions of random length; `likeness` is the correlation of two requests' outcomes within one (ICC)."""

    requests: int
    likeness: float


def false_roll_backs(
    sessions: Sessions, ratio: float, alpha: float, runs: int, random: np.random.Generator
) -> tuple[float, float]:
    """Share of good canaries that are rolled back: counted by request, and by session (a session with any event)."""
    test = RateTest.start("hi", ratio)
    by_request, by_session = _draw(sessions, runs, random)
    found = [
        float((e_values(test, (unit[0], unit[1]), (unit[2], unit[3])) >= 1.0 / alpha).any(axis=1).mean())
        for unit in (by_request, by_session)
    ]
    return found[0], found[1]


def _draw(sessions: Sessions, runs: int, random: np.random.Generator) -> tuple[Counts, Counts]:
    """Candidate events, stable events, candidate units, stable units; each one stratum by runs by looks."""
    concentration = 1.0 / sessions.likeness - 1.0
    most = _SESSIONS_A_LOOK * 2
    shape = (runs, LOOKS, most)
    exists = np.arange(most) < random.poisson(_SESSIONS_A_LOOK, size=(runs, LOOKS, 1))
    candidate = random.random(shape) < _SHARE
    chances = random.beta(_EVENT_SHARE * concentration, (1.0 - _EVENT_SHARE) * concentration, size=shape)
    requests = np.where(exists, random.geometric(1.0 / sessions.requests, size=shape), 0)
    events = random.binomial(requests, chances)
    arms = (candidate, ~candidate)
    by_request = [np.where(arm, what, 0).sum(axis=2) for what in (events, requests) for arm in arms]
    by_session = [np.where(arm, what > 0, 0).sum(axis=2) for what in (events, requests) for arm in arms]
    return np.array(by_request)[:, None], np.array(by_session)[:, None]
