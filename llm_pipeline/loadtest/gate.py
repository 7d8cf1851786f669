"""The load gate: do windows of traffic show, with confidence, that the server holds its service level at this rate?

    judgement = judge_windows(windows, policy)

A window's share is that of its requests that met the limits; a failed request misses every limit, and one whose user
left as planned is not judged. Requests that wait in one queue are alike, windows much longer than such a wait are not:
so the windows' shares are the sample (batch means: A. M. Law and J. S. Carson, A Sequential Procedure for Determining
the Length of a Steady-State Simulation, Operations Research 27, 1979). For k windows of N requests in all, whose shares
have the mean m and the standard deviation s, the bounds at the objective a are

    m -+ max(t s sqrt((1 + r) / (1 - r) / k), z sqrt(a (1 - a) / N))

with Student's quantile t of k - 1 degrees of freedom and the normal one z. Where a window is like the one before, a
queue outlasts it, and k windows tell less: r is their correlation. Not even independent requests would tell more than
the second term allows, however alike a few windows look. The lower bound at the objective or above is GO, the
upper one below it NO_GO. `benchmarks/load_gate.py` shows how often that errs.

A window in which the client fell behind is void and not counted. Impossible results are ANOMALOUS, which no good figure
outweighs: the measurement is broken, or the server does not compute its answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.config.policy import LoadTestPolicy, ServiceLevel
from llm_pipeline.loadtest.measure import MeasuredWindow, client_lag_seconds, rate_share
from llm_pipeline.loadtest.physics import TOLERANCE, PhysicalLimits, seconds_from_send
from llm_pipeline.loadtest.records import Fault, Records
from llm_pipeline.statistics.intervals import critical_value, deviation_in_turn, more_than

SERVICE_LEVEL_MET = "service level met"
FEWEST_WINDOWS = 4
"""Fewer never show that a server is good enough."""

MINIMUM_RATE_SHARE = 0.98
"""A client that sent less than this share of the offered rate has not offered it."""

_MOST_WINDOWS = 1000
_SHORT_WINDOW = 100
_COUNTERS_AGREE = 0.05
_FEWEST_SAMPLES = 2
_SHOWN = 3
_ORDER = (Verdict.ANOMALOUS, Verdict.NO_GO, Verdict.INCONCLUSIVE, Verdict.GO)
_ADVICE = (
    "The load generator could not keep up, so these windows say nothing about the server. Its host was too busy: run "
    "less beside it, give the test a host or cores of its own, or a lower rate; maximum_client_lag_milliseconds may "
    "rise as far as such a delay does not matter for the service level."
)

Severity = NDArray[np.float64]
"""Each request's latency divided by its limit: above 1 is missed, infinite failed, NaN not measurable."""


def severities(records: Records, level: ServiceLevel) -> dict[str, Severity]:
    """The severity of each request for each limit, by the limit's name.

    The time per output token is measured on answers of two tokens or more; elsewhere it is NaN.
    """
    several = records["output_tokens"] > 1
    limits = {
        "first token in time": (records["first_token_seconds"], level.first_token_milliseconds),
        "tokens in time": (records.time_per_output_token_seconds, level.time_per_output_token_milliseconds),
        "no long stall": (records["longest_gap_seconds"], level.longest_stall_milliseconds),
        "whole answer in time": (records["total_seconds"], level.end_to_end_milliseconds),
    }
    found: dict[str, Severity] = {}
    for name, (seconds, limit) in limits.items():
        if limit is None:
            continue
        by_limit = 1e3 * np.where(np.isnan(seconds), np.inf, seconds) / limit
        asked = np.where(several, by_limit, np.nan) if name == "tokens in time" else by_limit
        found[name] = np.where(records.answered, asked, np.inf)
    return found


def worst_severity(records: Records, level: ServiceLevel) -> Severity:
    """Each request's worst severity; infinite if none could be measured."""
    stacked = np.stack(list(severities(records, level).values()))
    worst: Severity = np.where(np.isnan(stacked), -np.inf, stacked).max(axis=0)
    return np.where(np.isneginf(worst), np.inf, worst)


def judge_windows(
    windows: Sequence[Records],
    policy: LoadTestPolicy,
    *,
    sent: Sequence[MeasuredWindow] = (),
    physics: PhysicalLimits | None = None,
) -> Judgement:
    """Judge windows of one rate, each with a seed of its own, together.

    Args:
        windows: What is judged; void ones are left out here.
        policy: When the server is fast enough.
        sent: All that was sent for it, with the token counters of the server, which are held against the answers.
        physics: What its hardware allows at best.

    Returns:
        ANOMALOUS for impossible results, NO_GO for too many failures or a missed service level, INCONCLUSIVE for too
        few windows that count, or bounds on both sides of a limit; GO otherwise.
    """
    judged = [window.judged for window in windows]
    void = [void_reason(window, policy) for window in windows]
    counted = [window for window, reason in zip(judged, void, strict=True) if not reason]
    late = next(filter(None, void), "")
    few = f"{len(windows) - len(counted)} of {len(windows)} windows are void. {late}" if late else "There are too few."
    enough = Evidence(
        name="windows that count",
        verdict=Verdict.GO if len(counted) >= FEWEST_WINDOWS else Verdict.INCONCLUSIVE,
        measured=float(len(counted)),
        limit=float(FEWEST_WINDOWS),
        unit="windows",
        samples=len(windows),
        detail=few if late or len(counted) < FEWEST_WINDOWS else "",
    )
    level, asked = policy.service_level, [severities(window, policy.service_level) for window in counted]
    attained = [
        judge_share(name, [limits[name][~np.isnan(limits[name])] <= 1.0 for limits in asked], policy.attainment, policy)
        for name in (asked[0] if asked else ())
    ]
    if level.together:
        joint = judge_share(SERVICE_LEVEL_MET, [good(window, level) for window in counted], policy.attainment, policy)
        if joint.verdict is Verdict.GO:  # a request that meets all limits meets each of them
            attained = [f.model_copy(update={"verdict": Verdict.GO}) if f.samples else f for f in attained]
        attained = [joint, *attained]
    facts = [
        *_impossible(windows),
        *_other_lengths(judged, policy),
        *_against_server(sent),
        *_against_physics(judged, physics),
        enough,
        _failures(counted, policy),
        *attained,
    ]
    # the reason of the verdict first; that of a GO is the service level, and not that nothing spoke against it
    facts.sort(key=lambda fact: (_ORDER.index(fact.verdict), fact.verdict is Verdict.GO and fact not in attained))
    claim = f"at least {100 * policy.attainment:g} % of requests within "
    claim += f"{'' if level.together else 'each of: '}{level.in_words}"
    judgement = judge("", facts)
    if judgement.verdict is Verdict.GO:
        each = sum(map(len, counted)) / len(counted)
        summary = (
            f"{claim[:1].upper()}{claim[1:]} ({100 * policy.confidence:g} % confidence, {len(counted)} windows of "
        )
        summary += f"{each:.0f} requests)."
        if each < _SHORT_WINDOW:
            summary += (
                " The windows are short: a queue that builds up, or a stall longer than one of them, may be missed."
            )
    else:
        summary = f"Not shown: {claim}. {judgement.evidence[0].name}: {judgement.evidence[0].detail}"
    return judgement.model_copy(update={"summary": summary})


def good(records: Records, level: ServiceLevel) -> NDArray[np.bool_]:
    """Which requests were answered, and within all limits of the service level."""
    return np.asarray(worst_severity(records, level) <= 1.0)


def probe_verdict(records: Records, policy: LoadTestPolicy) -> Verdict:
    """The verdict of one short probe: a point estimate, which only decides where the search goes next.

    A point estimate of a small share is mostly chance, so failures fail a probe only if significantly too many.
    """
    judged = records.judged
    if void_reason(records, policy) or not len(judged):
        return Verdict.INCONCLUSIVE
    if more_than(policy.maximum_error_fraction, int(np.sum(~judged.answered)), len(judged), policy.confidence):
        return Verdict.NO_GO
    limits = list(severities(judged, policy.service_level).values())
    asked = [worst_severity(judged, policy.service_level)] if policy.service_level.together else limits
    shares = [float(np.mean(limit[~np.isnan(limit)] <= 1.0)) for limit in asked if not np.all(np.isnan(limit))]
    return Verdict.GO if shares and min(shares) >= policy.attainment else Verdict.NO_GO


def void_reason(records: Records, policy: LoadTestPolicy) -> str:
    """Why a window of an open loop says nothing about the server; empty when it does."""
    if not len(records):
        return "No request arrived."
    lag, limit = 1e3 * client_lag_seconds(records), policy.maximum_client_lag_milliseconds
    if not lag <= limit:
        return f"The client's own delay had a p99 of {lag:.3g} ms, and {limit:g} ms are allowed. {_ADVICE}"
    span, share = float(np.ptp(records["arrives_at"])), rate_share(records)
    if span:  # without what the allowed delay alone takes from the rate in a short window
        share *= 1.0 + limit / 1e3 / span
    return f"The client sent {100 * share:.3g} % of the offered rate. {_ADVICE}" if share < MINIMUM_RATE_SHARE else ""


def judge_share(name: str, windows: Sequence[NDArray[np.bool_]], objective: float, policy: LoadTestPolicy) -> Evidence:
    """Whether windows show so large a share of good requests, by whether each of their requests was good."""
    measurable = [window for window in windows if len(window)]
    if not measurable:
        return Evidence(
            name=name,
            verdict=Verdict.INCONCLUSIVE,
            limit=objective,
            unit="fraction",
            detail="No request could be measured.",
        )
    shares, requests = [float(window.mean()) for window in measurable], sum(map(len, measurable))
    count, normal = len(shares), critical_value(policy.confidence)
    least = normal * math.sqrt(objective * (1.0 - objective) / requests)
    spread, mean = deviation_in_turn(shares) if count > 1 else math.inf, fmean(shares)

    def reach(windows: int) -> float:
        """How far the bounds are from the mean of so many windows like these."""
        if windows == 1:
            return math.inf
        student = critical_value(policy.confidence, windows - 1) * spread / math.sqrt(windows)
        return max(student, least * math.sqrt(count / windows))

    lower, upper = mean - reach(count), mean + reach(count)
    detail = f"{requests - sum(int(window.sum()) for window in measurable)} of {requests} requests missed it"
    if count >= FEWEST_WINDOWS and lower >= objective:
        verdict = Verdict.GO
    elif upper < objective:
        verdict = Verdict.NO_GO
    else:
        verdict = Verdict.INCONCLUSIVE
        for needed in range(max(count + 1, FEWEST_WINDOWS), _MOST_WINDOWS):
            if abs(mean - objective) >= reach(needed):
                detail += f"; at what was seen, {needed - count} more windows like these {count} would decide"
                break
        else:
            detail += "; at what was seen, no number of such windows would decide soon"
    return Evidence(
        name=name,
        verdict=verdict,
        measured=mean,
        lower=max(0.0, lower),
        upper=min(1.0, upper),
        confidence=policy.confidence,
        limit=objective,
        unit="fraction",
        samples=requests,
        detail=f"{detail}.",
    )


def _failures(windows: Sequence[Records], policy: LoadTestPolicy) -> Evidence:
    limit = policy.maximum_error_fraction
    answered = judge_share("failed requests", [window.answered for window in windows], 1.0 - limit, policy)
    if answered.measured is None or answered.lower is None or answered.upper is None:
        return answered.model_copy(update={"limit": limit})
    kinds = np.bincount(np.concatenate([window["fault"] for window in windows]), minlength=len(Fault))
    kinds[[Fault.NONE, Fault.LEFT]] = 0
    frequent = [Fault(place) for place in np.argsort(-kinds, kind="stable").tolist() if kinds[place]]
    detail = ", ".join(f"{kinds[fault]} {fault.words}" for fault in frequent) or "None failed"
    said = next((window.details[fault] for fault in frequent for window in windows if window.details.get(fault)), "")
    detail += f"; the first: {said}" if said else "."
    verdict = answered.verdict
    if limit == 0.0:  # cannot be shown, only observed
        verdict = Verdict.NO_GO if frequent else Verdict.GO
    elif verdict is Verdict.INCONCLUSIVE:
        detail += f" {answered.detail}"
    return Evidence(
        name="failed requests",
        verdict=verdict,
        measured=1.0 - answered.measured,
        lower=1.0 - answered.upper,
        upper=1.0 - answered.lower,
        confidence=answered.confidence,
        limit=limit,
        unit="fraction",
        samples=answered.samples,
        detail=detail,
    )


def _impossible(windows: Sequence[Records]) -> list[Evidence]:
    """Evidence of single results that no server can produce; none when there are none."""
    found = [(number, reason) for window in windows for number, reason in _impossibilities(window)]
    if not found:
        return []
    shown = "; ".join(f"request {number}: {reason}" for number, reason in found[:_SHOWN])
    return [_anomaly("impossible results", len(found), windows, f"{shown}. The measurement is broken.")]


def _other_lengths(windows: Sequence[Records], policy: LoadTestPolicy) -> list[Evidence]:
    """Evidence that more than the tolerated share of answers were shorter or longer than requested; empty otherwise."""
    short, long = (
        sum(int(np.sum(window["fault"] == fault)) for window in windows) for fault in (Fault.SHORT, Fault.LONG)
    )
    requests = sum(len(window) for window in windows)
    if not more_than(policy.maximum_error_fraction, short + long, requests, policy.confidence):
        return []
    detail = f"{short} answers had fewer tokens than asked for and {long} more: the figures are not of the workload's."
    return [_anomaly("answers of another length", short + long, windows, detail)]


def _against_physics(windows: Sequence[Records], physics: PhysicalLimits | None) -> list[Evidence]:
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


def _against_server(sent: Sequence[MeasuredWindow]) -> list[Evidence]:
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
    checks: tuple[tuple[NDArray[np.bool_], str], ...] = (
        (no_time, "it took no time, or its times are no numbers"),
        (misplaced, "its first token came before the request was sent, or after its end"),
        (miscounted, "it counts as answered, without a token or with more than asked for"),
    )
    found = {int(place): reason for mask, reason in reversed(checks) for place in np.flatnonzero(mask)}
    return [(int(window["number"][place]), found[place]) for place in sorted(found)]


def _timed(windows: Sequence[Records]) -> list[Records]:
    """Windows of their answers with usable times, where there are any; the others are evidence of `_impossible`."""
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
