"""The load gate: do windows of traffic show, with confidence, that the server holds its service level at this rate?

    judgement = judge_windows([first, second, third], policy)

A failed request misses every limit; one whose user left as planned is not judged. The shares of good and of failed
requests get exact binomial one-sided bounds, as in MLPerf Inference's early stopping: GO if even the worse bound is
allowed, NO_GO if even the better one is not. Requests in one queue are correlated, so they are down-weighted, and a GO
must also hold for spells of waiting, as the judged windows and one that is not judged show them together; windows that
differ are judged as slow as a further one may be (`design_effect.py`); the error is split over all looks at extended
data. The summary names the stalls that were too rare to be seen (`sample_size.py`).

Impossible results are ANOMALOUS and a client that fell behind is INCONCLUSIVE, whatever the other figures say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.config.policy import LoadTestPolicy, ServiceLevel
from llm_pipeline.loadtest import anomalies
from llm_pipeline.loadtest.design_effect import (
    Severity,
    autocorrelation_time,
    design_effect,
    effect_of_misses,
    slowdown,
    upper_share,
    waiting_effect,
    without_late,
)
from llm_pipeline.loadtest.measure import client_lag_seconds, rate_share
from llm_pipeline.loadtest.outcome import ServerUse
from llm_pipeline.loadtest.physics import FloorTimes, PhysicalLimits
from llm_pipeline.loadtest.records import Fault, Records
from llm_pipeline.loadtest.sample_size import (
    confidence_of_a_look,
    needed_requests,
    not_excluded,
    share_bounds,
    shown_above,
    worth_of,
)

SERVICE_LEVEL_MET = "service level met"
MINIMUM_RATE_SHARE = 0.98
"""A client that sent less than this share of the offered rate has not offered it."""

_TOLD_FACTOR = 1.005
_ORDER = (Verdict.ANOMALOUS, Verdict.NO_GO, Verdict.INCONCLUSIVE, Verdict.GO)
_ADVICE = (
    "The load generator could not keep up, so the run says nothing about the server. Its host was too busy: run "
    "less beside it, give the test a host or cores of its own, or a lower rate; maximum_client_lag_milliseconds may "
    "rise as far as such a delay does not matter for the service level."
)


def severities(records: Records, level: ServiceLevel) -> dict[str, Severity]:
    """The severity of each request for each limit, by the limit's name: latency by limit, infinite for a failure.

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


def worst_severity(limits: dict[str, Severity]) -> Severity:
    """Each request's worst severity; infinite if none could be measured."""
    stacked = np.stack(list(limits.values()))
    worst: Severity = np.where(np.isnan(stacked), -np.inf, stacked).max(axis=0)
    return np.where(np.isneginf(worst), np.inf, worst)


def good(records: Records, level: ServiceLevel) -> NDArray[np.bool_]:
    """Which requests were answered, and within all limits of the service level."""
    return np.asarray(worst_severity(severities(records, level)) <= 1.0)


def judge_windows(
    windows: Sequence[Records],
    policy: LoadTestPolicy,
    *,
    before: Sequence[Records] = (),
    same_rate: bool = True,
    look: int = 1,
    looks: int = 1,
    floor: FloorTimes | None = None,
    physics: PhysicalLimits | None = None,
    servers: Sequence[ServerUse] = (),
) -> Judgement:
    """Judge windows of one rate, each with a seed of its own, together.

    Args:
        windows: All windows so far.
        policy: When the server is fast enough.
        before: Windows that came before and are not judged: they only show how requests wait for one another.
        same_rate: Whether those were of the same rate as the judged ones: then they also show how windows differ.
        look: Which look at growing data this is, from 1.
        looks: How many there are at most; they share the error that the policy allows.
        floor: What the server took alone.
        physics: What its hardware allows at best.
        servers: What the server's metrics said of each window; their token counters are held against the answers.

    Returns:
        ANOMALOUS for impossible results, NO_GO for too many errors or a missed service level, INCONCLUSIVE for too few
        requests, a load generator that could not keep up, or too wide bounds; GO otherwise.
    """
    judged = [window.judged for window in windows]
    impossible = [
        *anomalies.impossible(windows),
        *anomalies.other_lengths(judged, policy),
        *anomalies.against_server(windows, servers),
        *anomalies.against_physics(judged, physics),
        *anomalies.against_floor(judged, floor),
    ]
    asked, answered = (sum(map(len, judged)), sum(int(np.sum(window.answered)) for window in judged))
    few = asked < policy.minimum_requests
    enough = Evidence(
        name="finished requests",
        verdict=Verdict.INCONCLUSIVE if few else Verdict.GO,
        measured=float(asked),
        limit=float(policy.minimum_requests),
        unit="requests",
        samples=asked,
        detail="Too few to judge a share: raise the workload's duration or rate."
        if few
        else f"{answered} of them were answered.",
    )
    client = _client_facts(windows, policy)
    void = any(fact.verdict is not Verdict.GO for fact in client)
    confidence = confidence_of_a_look(policy.confidence, looks)
    aside = [window.judged for window in before]
    attained = _attainments(judged, aside, policy, confidence, usable=not void and not few, same_rate=same_rate)
    facts = [*impossible, *client, enough, _errors(judged, policy, confidence, void=void), *attained]
    # the reason of the verdict first; that of a GO is the service level, and not that nothing spoke against it
    facts.sort(key=lambda fact: (_ORDER.index(fact.verdict), fact.verdict is Verdict.GO and fact not in attained))
    judgement = judge("", facts)
    share = f"at least {100 * policy.attainment:g} % of requests within "
    share += f"{'' if policy.service_level.together else 'each of: '}{policy.service_level.in_words}"
    if judgement.verdict is Verdict.GO:
        summary = f"Shown at {100 * policy.confidence:g} % confidence: {share}. {not_excluded(judged, policy)}"
    else:
        at = f" at look {look} of {looks}" if looks > 1 else ""
        summary = f"Not shown{at}: {share}. {judgement.evidence[0].name}: {judgement.evidence[0].detail}"
    return judgement.model_copy(update={"summary": summary})


def probe_verdict(records: Records, policy: LoadTestPolicy) -> Verdict:
    """The verdict of one short probe: a point estimate, which only decides where the search goes next.

    A point estimate of a small share is mostly chance, so failures fail a probe only if significantly too many.
    """
    judged = records.judged
    if not len(judged) or void_reason(records, policy):
        return Verdict.INCONCLUSIVE
    if shown_above(int(np.sum(~judged.answered)), len(judged), policy):
        return Verdict.NO_GO
    limits = severities(judged, policy.service_level)
    asked = [worst_severity(limits)] if policy.service_level.together else list(limits.values())
    shares = [float(np.mean(limit[~np.isnan(limit)] <= 1.0)) for limit in asked if not np.all(np.isnan(limit))]
    return Verdict.GO if shares and min(shares) >= policy.attainment else Verdict.NO_GO


def void_reason(records: Records, policy: LoadTestPolicy) -> str:
    """Why a window of an open loop is void; empty when it is not."""
    facts = _client_facts([records], policy)
    return next((f"{fact.name}: {fact.detail}" for fact in facts if fact.verdict is not Verdict.GO), "")


def _attainments(
    windows: Sequence[Records],
    before: Sequence[Records],
    policy: LoadTestPolicy,
    confidence: float,
    *,
    usable: bool,
    same_rate: bool,
) -> list[Evidence]:
    """Evidence of attainment: all limits together, or each limit by itself."""
    level = policy.service_level
    limits, aside = ([severities(window, level) for window in some] for some in (windows, before))

    def attained(name: str, of: Callable[[dict[str, Severity]], Severity]) -> Evidence:
        seen, known = list(map(of, limits)), list(map(of, aside))
        return _attainment(name, seen, known, policy, confidence, usable=usable, same_rate=same_rate)

    facts = [attained(name, itemgetter(name)) for name in (limits[0] if limits else ())]
    if not level.together or not limits:
        return facts
    joint = attained(SERVICE_LEVEL_MET, worst_severity)
    if joint.verdict is Verdict.GO:  # a request that meets all limits meets each of them
        facts = [f.model_copy(update={"verdict": Verdict.GO}) if f.samples else f for f in facts]
    return [joint, *facts]


def _attainment(
    name: str,
    windows: Sequence[Severity],
    before: Sequence[Severity],
    policy: LoadTestPolicy,
    confidence: float,
    *,
    usable: bool,
    same_rate: bool,
) -> Evidence:
    asked, aside = ([window[~np.isnan(window)] for window in some] for some in (windows, before))
    total, hits = sum(map(len, asked)), _hits(asked)
    if total == 0:
        return Evidence(
            name=name,
            verdict=Verdict.INCONCLUSIVE,
            limit=policy.attainment,
            unit="fraction",
            detail="No request could be measured.",
        )
    alike: list[Severity] = []  # as long as the judged windows; a single one differs from none
    if same_rate and len(asked) > 1:
        length = total / len(asked)
        alike = [piece for window in aside for piece in np.array_split(window, max(1, round(len(window) / length)))]
    factor = slowdown([*alike, *asked], confidence)
    slower, faster = ([by * window for window in asked] for by in (factor, 1.0 / factor))
    waiting = waiting_effect([*aside, *asked], policy.attainment)
    late = upper_share(total - _hits(slower), total, confidence, waiting) if waiting > 1.0 else 0.0
    seen = share_bounds(_hits(slower), total, confidence, effect_of_misses(slower)).lower
    lower = min(seen, 1.0 - late)
    upper = share_bounds(_hits(faster), total, confidence, design_effect(faster, policy.attainment)).upper
    worth = worth_of(total, confidence, design_effect(slower, policy.attainment))
    verdict = Verdict.INCONCLUSIVE
    if usable and lower >= policy.attainment:
        verdict = Verdict.GO
    elif usable and upper < policy.attainment:
        verdict = Verdict.NO_GO
    detail = f"{total - hits} of {total} requests missed it"
    if worth < total:
        detail += f"; they are correlated and count as {worth:.0f} independent ones"
    if factor > _TOLD_FACTOR:
        detail += f"; the windows differ, and further ones may be {factor:.2f} times as slow"
    detail += f"; bounds at {100 * confidence:.4g} % each"
    needed = needed_requests(policy.attainment, confidence, misses=int((total - hits) / total * worth))
    inconclusive = verdict is Verdict.INCONCLUSIVE
    detail += f", {needed} independent requests are needed." if inconclusive and worth < needed else "."
    least = without_late(1.0 - policy.attainment, confidence, waiting)
    if inconclusive and waiting > 1.0 and total < least:
        spell = (1.0 + waiting) / 2.0
        detail += f" Requests wait in spells of up to {spell:.0f}: even with none late, {math.ceil(least)} are needed."
    return Evidence(
        name=name,
        verdict=verdict,
        measured=hits / total,
        lower=lower,
        upper=upper,
        limit=policy.attainment,
        unit="fraction",
        samples=total,
        detail=detail,
    )


def _hits(windows: Sequence[Severity]) -> int:
    return sum(int(np.sum(window <= 1.0)) for window in windows)


def _errors(windows: Sequence[Records], policy: LoadTestPolicy, confidence: float, *, void: bool) -> Evidence:
    name, limit = "failed requests", policy.maximum_error_fraction
    total = sum(len(window) for window in windows)
    failed = sum(int(np.sum(~window.answered)) for window in windows)
    if total == 0:
        return Evidence(name=name, verdict=Verdict.INCONCLUSIVE, limit=limit, unit="fraction")
    effect = min(float(total), autocorrelation_time([~window.answered for window in windows]))
    bounds = share_bounds(failed, total, confidence, effect)
    none_allowed = limit == 0.0  # a tolerance of 0 cannot be shown, only observed
    within = not failed if none_allowed else bounds.upper <= limit
    verdict = Verdict.GO if within else Verdict.INCONCLUSIVE
    if bounds.lower > limit and not void:
        verdict = Verdict.NO_GO
    detail = "None failed."
    if failed:  # by kind, most frequent first, with the first message of the most frequent kind
        kinds = np.bincount(np.concatenate([window["fault"] for window in windows]), minlength=len(Fault))
        counts = {fault: int(kinds[fault]) for fault in Fault if fault not in (Fault.NONE, Fault.LEFT) and kinds[fault]}
        frequent = sorted(counts, key=lambda fault: -counts[fault])
        detail = ", ".join(f"{counts[fault]} {fault.words}" for fault in frequent)
        first = next((w.details[fault] for fault in frequent for w in windows if w.details.get(fault)), "")
        detail += f"; the first: {first}" if first else "."
    if verdict is Verdict.INCONCLUSIVE and limit:
        needed = needed_requests(1.0 - limit, confidence, misses=failed)
        detail += f" {needed} independent requests with no more failures are needed to show {100 * limit:g} %."
    return Evidence(
        name=name,
        verdict=verdict,
        measured=failed / total,
        lower=bounds.lower,
        upper=bounds.upper,
        limit=limit,
        unit="fraction",
        samples=total,
        detail=detail,
    )


def _client_facts(windows: Sequence[Records], policy: LoadTestPolicy) -> list[Evidence]:
    """Whether the client kept up; of several windows the worst is reported."""
    requests, limit = sum(map(len, windows)), policy.maximum_client_lag_milliseconds
    lags = [1e3 * client_lag_seconds(window) for window in windows]
    lag = max((math.inf if math.isnan(one) else one for one in lags), default=math.inf)
    shares = []
    for window in windows:  # without what the allowed delay alone takes from the rate in a short window
        span = float(np.ptp(window["arrives_at"])) if len(window) else 0.0
        shares.append(min(1.0, rate_share(window) * (1.0 + limit / 1e3 / span)) if span else rate_share(window))
    share = min(shares, default=0.0)

    def fact(name: str, measured: float, bound: float, unit: str, *, kept_up: bool) -> Evidence:
        return Evidence(
            name=name,
            verdict=Verdict.GO if kept_up and requests else Verdict.INCONCLUSIVE,
            measured=measured if requests and math.isfinite(measured) else None,
            limit=bound,
            unit=unit,
            samples=requests,
            detail="" if kept_up else _ADVICE,
        )

    return [
        fact("client's own delay, p99", lag, limit, "ms", kept_up=lag <= limit),
        fact(
            "sent rate, share of the offered one",
            share,
            MINIMUM_RATE_SHARE,
            "fraction",
            kept_up=share >= MINIMUM_RATE_SHARE,
        ),
    ]
