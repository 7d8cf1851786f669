"""Whether a window says anything about the server: one whose client fell behind says nothing. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from llm_pipeline.base.verdict import Evidence, Verdict
from llm_pipeline.config.policy import LoadTestPolicy
from llm_pipeline.loadtest.measure import client_lag_seconds, rate_share
from llm_pipeline.loadtest.records import Records

MINIMUM_RATE_SHARE = 0.98
"""A client that sent less than this share of the offered rate has not offered it."""

_ADVICE = (
    "The load generator could not keep up, so the run says nothing about the server. Its host was too busy: run "
    "less beside it, give the test a host or cores of its own, more client_processes where cores are free, or a "
    "lower rate; maximum_client_lag_milliseconds may rise as far as such a delay does not matter for the service level."
)


def void_reason(records: Records, policy: LoadTestPolicy) -> str:
    """Why a window of an open loop is void; empty when it is not."""
    facts = client_facts([records], policy)
    return next((f"{fact.name}: {fact.detail}" for fact in facts if fact.verdict is not Verdict.GO), "")


def client_facts(windows: Sequence[Records], policy: LoadTestPolicy) -> list[Evidence]:
    """Whether the client kept up; of several windows the worst is reported."""
    lag = max((_milliseconds(client_lag_seconds(window)) for window in windows), default=math.inf)
    requests, limit = sum(len(window) for window in windows), policy.maximum_client_lag_milliseconds
    share = min((_rate_share(window, limit / 1e3) for window in windows), default=0.0)
    return [
        _fact("client's own delay, p99", lag, limit, "ms", requests, kept_up=lag <= limit),
        _fact(
            "sent rate, share of the offered one",
            share,
            MINIMUM_RATE_SHARE,
            "fraction",
            requests,
            kept_up=share >= MINIMUM_RATE_SHARE,
        ),
    ]


def _rate_share(window: Records, allowed_seconds: float) -> float:
    """The rate's share, without what the allowed delay alone takes from it in a short window."""
    span = float(np.ptp(window["arrives_at"])) if len(window) else 0.0
    return min(1.0, rate_share(window) * (1.0 + allowed_seconds / span)) if span else rate_share(window)


def _fact(name: str, measured: float, limit: float, unit: str, requests: int, *, kept_up: bool) -> Evidence:
    return Evidence(
        name=name,
        verdict=Verdict.GO if kept_up and requests else Verdict.INCONCLUSIVE,
        measured=measured if requests and math.isfinite(measured) else None,
        limit=limit,
        unit=unit,
        samples=requests,
        detail="" if kept_up else _ADVICE,
    )


def _milliseconds(seconds: float) -> float:
    return math.inf if math.isnan(seconds) else 1e3 * seconds
