"""Impossible results: the measurement is broken, or the server does not compute its answers. Pure.

All of them are ANOMALOUS, which no good figure outweighs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.base.verdict import Evidence, Verdict
from llm_pipeline.config.policy import LoadTestPolicy
from llm_pipeline.loadtest.measure import MeasuredWindow
from llm_pipeline.loadtest.physics import TOLERANCE, PhysicalLimits, seconds_from_send
from llm_pipeline.loadtest.records import Fault, Records
from llm_pipeline.statistics.intervals import more_than

_COUNTERS_AGREE = 0.05
_FEWEST_SAMPLES = 2
_SHOWN = 3
_Mask = NDArray[np.bool_]


def impossible(windows: Sequence[Records]) -> list[Evidence]:
    """Evidence of single results that no server can produce; none when there are none."""
    found = [(number, reason) for window in windows for number, reason in _impossibilities(window)]
    if not found:
        return []
    shown = "; ".join(f"request {number}: {reason}" for number, reason in found[:_SHOWN])
    return [_anomaly("impossible results", len(found), windows, f"{shown}. The measurement is broken.")]


def other_lengths(windows: Sequence[Records], policy: LoadTestPolicy) -> list[Evidence]:
    """Evidence that more than the tolerated share of answers were shorter or longer than requested; empty otherwise."""
    short, long = (
        sum(int(np.sum(window["fault"] == fault)) for window in windows) for fault in (Fault.SHORT, Fault.LONG)
    )
    requests = sum(len(window) for window in windows)
    if not more_than(policy.maximum_error_fraction, short + long, requests, policy.confidence):
        return []
    detail = f"{short} answers had fewer tokens than asked for and {long} more: the figures are not of the workload's."
    return [_anomaly("answers of another length", short + long, windows, detail)]


def against_physics(windows: Sequence[Records], physics: PhysicalLimits | None) -> list[Evidence]:
    """Whether any answer, or all of a window together, was faster than the hardware allows at best."""
    answered = _timed(windows)
    if physics is None or not answered:
        return []
    ratios = np.concatenate([_physical_ratio(window, physics) for window in answered])
    faster, busiest = int(np.sum(ratios < TOLERANCE)), max(_share_of_peak(window, physics) for window in answered)
    best, most = (f"relative to the {what} that {physics.accelerator} allows" for what in ("least time", "most"))
    slow = f"{faster} answers were faster than memory and tensor cores allow."
    busy = "More tokens a second than the hardware can compute."
    return [
        _relative(f"fastest answer, {best}", float(np.min(ratios)), TOLERANCE, len(ratios), slow if faster else ""),
        _relative(
            f"throughput, {most}", busiest, 1.0 / TOLERANCE, len(ratios), busy if busiest > 1.0 / TOLERANCE else ""
        ),
    ]


def against_server(sent: Sequence[MeasuredWindow]) -> list[Evidence]:
    """Evidence of tokens in answers that the server never counted as generated; empty without counters.

    More counted tokens are no contradiction: a server also counts those of failed and cancelled requests.
    """
    found: list[Evidence] = []
    for measured in sent:
        records, server = measured.records, measured.server
        if server.output_tokens is None or server.samples < _FEWEST_SAMPLES or not len(records):
            continue
        came = int(records["output_tokens"].sum())
        if server.output_tokens >= (1.0 - _COUNTERS_AGREE) * came:
            continue
        missing = came - server.output_tokens
        detail = f"Its answers had {came} output tokens, its metrics counted {server.output_tokens}."
        found.append(_anomaly("tokens that were never generated", missing, [records], detail, "tokens"))
    return found


def _impossibilities(window: Records) -> list[tuple[int, str]]:
    first, total, sent = window["first_token_seconds"], window["total_seconds"], window["lag_seconds"]
    answered, tokens = window.answered, window["output_tokens"]
    finite = np.isfinite(total) & np.isfinite(sent) & np.isfinite(first)
    no_time = answered & ~(finite & (total > np.maximum(0.0, sent)))
    misplaced = (first <= np.maximum(0.0, sent)) | (first > total)
    miscounted = answered & ((tokens <= 0) | (tokens > window["asked_tokens"]))
    checks: tuple[tuple[_Mask, str], ...] = (
        (no_time, "it took no time, or its times are no numbers"),
        (misplaced, "its first token came before the request was sent, or after its end"),
        (miscounted, "it counts as answered, without a token or with more than asked for"),
    )
    found = {int(place): reason for mask, reason in reversed(checks) for place in np.flatnonzero(mask)}
    return [(int(window["number"][place]), found[place]) for place in sorted(found)]


def _timed(windows: Sequence[Records]) -> list[Records]:
    """Windows of their answers with usable times, where there are any; the others are evidence of `impossible`."""
    usable = [
        window.where(window.answered & np.isfinite(seconds_from_send(window)) & (window["output_tokens"] > 0))
        for window in windows
    ]
    return [window for window in usable if len(window)]


def _physical_ratio(window: Records, physics: PhysicalLimits) -> NDArray[np.float64]:
    """For each answer the lower ratio of measured to least time: to its end, or to its first token."""
    whole = _ratio(seconds_from_send(window), physics.least_seconds(window))
    first = window["first_token_seconds"] - window["lag_seconds"]
    begun = _ratio(np.where(np.isnan(first), np.inf, first), physics.least_first_token_seconds(window))
    return np.minimum(whole, begun)


def _share_of_peak(window: Records, physics: PhysicalLimits) -> float:
    """The least time for the window's tokens, as a share of the time from its first send to its last byte."""
    sends = window["arrives_at"] + window["lag_seconds"]
    span = float(np.max(window["arrives_at"] + window["total_seconds"]) - np.min(sends))
    outputs = float(window["output_tokens"].sum()) / physics.tokens_per_second
    prompts = float(window["input_tokens"].sum()) * physics.prompt_token_seconds
    return max(outputs, prompts) / max(span, 1e-9)


def _ratio(seconds: NDArray[np.float64], least: NDArray[np.float64]) -> NDArray[np.float64]:
    return seconds / np.maximum(least, 1e-9)


def _relative(name: str, measured: float, limit: float, samples: int, anomaly: str) -> Evidence:
    """How near the extreme came to a limit, and what is impossible about it, if anything is."""
    verdict = Verdict.ANOMALOUS if anomaly else Verdict.GO
    return Evidence(
        name=name, verdict=verdict, measured=measured, limit=limit, unit="times", samples=samples, detail=anomaly
    )


def _anomaly(name: str, count: int, windows: Sequence[Records], detail: str, unit: str = "requests") -> Evidence:
    samples, verdict = sum(map(len, windows)), Verdict.ANOMALOUS
    return Evidence(
        name=name, verdict=verdict, measured=float(count), limit=0.0, unit=unit, samples=samples, detail=detail
    )
