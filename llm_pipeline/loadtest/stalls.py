"""Rare stalls: which ones a load test of a given length excludes. Pure.

A test cannot see a stall that does not come while it runs. Stalls that come at random, once per period on average, all
stay away for a time T with probability exp(-T / period) (the "rule of three" of J. A. Hanley and A.
Lippman-Hand, JAMA 249, 1983; exact for a Poisson process, F. Garwood, Biometrika 28, 1936). So a GO names the period
that its time excludes, and becomes INCONCLUSIVE if the policy requires a longer one. This gets half of the policy's
error; the other half covers stalls that were seen but given too little weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from llm_pipeline.base.quantities import duration
from llm_pipeline.base.verdict import Evidence, Verdict
from llm_pipeline.config.policy import LoadTestPolicy
from llm_pipeline.loadtest.records import Records


def excluded_period(seconds: float, confidence: float) -> float:
    """The longest period, in seconds, of stalls that would have shown within this many seconds."""
    return seconds / _periods(confidence)


def seconds_to_exclude(period: float, confidence: float) -> float:
    """How long traffic must run until stalls that come once per `period` seconds would have shown."""
    return period * _periods(confidence)


def soak_seconds(policy: LoadTestPolicy) -> float:
    """Length of the soak; 0 without one."""
    return 0.0 if policy.soak is None else policy.soak.duration_seconds


def watched_seconds(windows: Sequence[Records]) -> float:
    """How long requests arrived in windows."""
    spans = [(len(window), float(np.ptp(window["arrives_at"]))) for window in windows if len(window) > 1]
    return sum(span * count / (count - 1) for count, span in spans)


def _periods(confidence: float) -> float:
    return math.log(2.0 / (1.0 - confidence))


def rare_stalls(windows: Sequence[Records], policy: LoadTestPolicy) -> list[Evidence]:
    """Whether the windows, and the soak that follows them, are long enough for the policy's period; none without it."""
    wanted = policy.stall_period_seconds
    if wanted is None:
        return []
    seconds = watched_seconds(windows) + soak_seconds(policy)
    period = excluded_period(seconds, policy.confidence)
    enough = period >= wanted
    needed = seconds_to_exclude(wanted, policy.confidence)
    return [
        Evidence(
            name="period of stalls that would have been seen",
            verdict=Verdict.GO if enough and seconds else Verdict.INCONCLUSIVE,
            measured=period,
            limit=wanted,
            unit="s",
            samples=sum(map(len, windows)),
            detail=f"{seconds:.0f} s of traffic, the soak included; {needed:.0f} s are needed.",
        )
    ]


def not_excluded(windows: Sequence[Records], policy: LoadTestPolicy) -> str:
    """Which stalls a GO does not exclude, in a sentence."""
    period = excluded_period(watched_seconds(windows) + soak_seconds(policy), policy.confidence)
    return f"Stalls rarer than one in {duration(period)} are not excluded."
