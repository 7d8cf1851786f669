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

from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.config.policy import LoadTestPolicy
from llm_pipeline.loadtest import anomalies
from llm_pipeline.loadtest.attainment import SERVICE_LEVEL_MET, Severity, level_in_words, severities, worst_severity
from llm_pipeline.loadtest.design_effect import (
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

_TOLD_FACTOR = 1.005


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
    client, enough = client_facts(windows, policy), _enough(judged, policy)
    confidence = confidence_of_a_look(policy.confidence, looks)
    void = any(fact.verdict is not Verdict.GO for fact in client)
    usable = not void and enough.verdict is Verdict.GO
    aside = [window.judged for window in before]
    attained = _attainments(judged, aside, policy, confidence, usable=usable, same_rate=same_rate)
    facts = [_errors(judged, policy, confidence, void=void), *attained]
    judgement = judge("", _most_telling_first([*impossible, *client, enough, *facts], attained))
    return judgement.model_copy(update={"summary": _summary(judgement, judged, policy, look, looks)})


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
    total, hits = sum(len(window) for window in asked), _hits(asked)
    if total == 0:
        return Evidence(
            name=name,
            verdict=Verdict.INCONCLUSIVE,
            limit=policy.attainment,
            unit="fraction",
            detail="No request could be measured.",
        )
    factor = slowdown([*(_as_long(aside, asked) if same_rate else ()), *asked], confidence)
    slower, faster = ([by * window for window in asked] for by in (factor, 1.0 / factor))
    waiting = waiting_effect([*aside, *asked], policy.attainment)
    lower = _lower(slower, confidence, waiting)
    upper = share_bounds(_hits(faster), total, confidence, design_effect(faster, policy.attainment)).upper
    worth = worth_of(total, confidence, design_effect(slower, policy.attainment))
    verdict = Verdict.INCONCLUSIVE
    if usable and lower >= policy.attainment:
        verdict = Verdict.GO
    elif usable and upper < policy.attainment:
        verdict = Verdict.NO_GO
    return Evidence(
        name=name,
        verdict=verdict,
        measured=hits / total,
        lower=lower,
        upper=upper,
        limit=policy.attainment,
        unit="fraction",
        samples=total,
        detail=_attained(total - hits, total, worth, confidence, factor)
        + _enough_for_none(verdict, (total - hits) / total, worth, confidence, policy)
        + _longer(verdict, total, waiting, confidence, policy),
    )


def _hits(windows: Sequence[Severity]) -> int:
    return sum(int(np.sum(window <= 1.0)) for window in windows)


def _as_long(before: Sequence[Severity], judged: Sequence[Severity]) -> list[Severity]:
    """Windows cut into pieces about as long as the judged ones; none where one is judged, which differs from none."""
    if len(judged) == 1:
        return []
    length = sum(map(len, judged)) / len(judged)
    return [piece for window in before for piece in np.array_split(window, max(1, round(len(window) / length)))]


def _lower(windows: Sequence[Severity], confidence: float, waiting: float) -> float:
    """The lower bound of the share within the limit, by the observed misses and by how requests wait in queues."""
    total, hits = sum(len(window) for window in windows), _hits(windows)
    seen = share_bounds(hits, total, confidence, effect_of_misses(windows)).lower
    late = upper_share(total - hits, total, confidence, waiting) if waiting > 1.0 else 0.0
    return min(seen, 1.0 - late)


def _attained(missed: int, total: int, worth: float, confidence: float, factor: float) -> str:
    counted = f"{missed} of {total} requests missed it"
    if worth < total:
        counted += f"; they are correlated and count as {worth:.0f} independent ones"
    if factor > _TOLD_FACTOR:
        counted += f"; the windows differ, and further ones may be {factor:.2f} times as slow"
    return f"{counted}; bounds at {100 * confidence:.4g} % each"


def _enough_for_none(verdict: Verdict, missed: float, worth: float, confidence: float, policy: LoadTestPolicy) -> str:
    needed = needed_requests(policy.attainment, confidence, misses=int(missed * worth))
    is_short = verdict is Verdict.INCONCLUSIVE and worth < needed
    return f", {needed} independent requests are needed." if is_short else "."


def _longer(verdict: Verdict, total: int, waiting: float, confidence: float, policy: LoadTestPolicy) -> str:
    """That the test is too short for this queue; empty when it is not."""
    needed = without_late(1.0 - policy.attainment, confidence, waiting)
    if verdict is not Verdict.INCONCLUSIVE or waiting <= 1.0 or total >= needed:
        return ""
    spell = (1.0 + waiting) / 2.0
    return f" Requests wait in spells of up to {spell:.0f}: even with none late, {math.ceil(needed)} are needed."


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
    return Evidence(
        name=name,
        verdict=verdict,
        measured=failed / total,
        lower=bounds.lower,
        upper=bounds.upper,
        limit=limit,
        unit="fraction",
        samples=total,
        detail=f"{_by_kind(windows) if failed else 'None failed.'}{_still_needed(verdict, failed, confidence, limit)}",
    )


def _still_needed(verdict: Verdict, failed: int, confidence: float, limit: float) -> str:
    if verdict is not Verdict.INCONCLUSIVE or not limit:
        return ""
    needed = needed_requests(1.0 - limit, confidence, misses=failed)
    return f" {needed} independent requests with no more failures are needed to show {100 * limit:g} %."


def _by_kind(windows: Sequence[Records]) -> str:
    """The number of failures by kind, most frequent first, and the first message of the most frequent kind."""
    kinds = np.bincount(np.concatenate([window["fault"] for window in windows]), minlength=len(Fault))
    counts = {fault: int(kinds[fault]) for fault in Fault if fault not in (Fault.NONE, Fault.LEFT) and kinds[fault]}
    frequent = sorted(counts, key=lambda fault: -counts[fault])
    listed = ", ".join(f"{counts[fault]} {fault.words}" for fault in frequent)
    said = (window.details[fault] for fault in frequent for window in windows if window.details.get(fault))
    first = next(said, "")
    return f"{listed}; the first: {first}" if first else f"{listed}."


def _enough(windows: Sequence[Records], policy: LoadTestPolicy) -> Evidence:
    answered = sum(int(np.sum(window.answered)) for window in windows)
    asked = sum(len(window) for window in windows)
    enough = asked >= policy.minimum_requests
    return Evidence(
        name="finished requests",
        verdict=Verdict.GO if enough else Verdict.INCONCLUSIVE,
        measured=float(asked),
        limit=float(policy.minimum_requests),
        unit="requests",
        samples=asked,
        detail=f"{answered} of them were answered."
        if enough
        else "Too few to judge a share: raise the workload's duration or rate.",
    )


_ORDER = (Verdict.ANOMALOUS, Verdict.NO_GO, Verdict.INCONCLUSIVE, Verdict.GO)


def _most_telling_first(facts: Sequence[Evidence], attained: Sequence[Evidence]) -> list[Evidence]:
    """The reason of the verdict first; that of a GO is the service level, and not that nothing spoke against it."""

    def order(fact: Evidence) -> tuple[int, bool]:
        return _ORDER.index(fact.verdict), fact.verdict is Verdict.GO and fact not in attained

    return sorted(facts, key=order)


def _summary(judgement: Judgement, windows: Sequence[Records], policy: LoadTestPolicy, look: int, looks: int) -> str:
    level = policy.service_level
    each = "" if level.together else "each of: "
    share = f"at least {100 * policy.attainment:g} % of requests within {each}{level_in_words(level)}"
    if judgement.verdict is Verdict.GO:
        return f"Shown at {100 * policy.confidence:g} % confidence: {share}. {not_excluded(windows, policy)}"
    at = f" at look {look} of {looks}" if looks > 1 else ""
    fact = judgement.evidence[0]
    return f"Not shown{at}: {share}. {fact.name}: {fact.detail}"


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
