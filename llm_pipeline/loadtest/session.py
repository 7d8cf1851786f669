"""A load test from the first request to the verdict.

    outcome = run_session(windows, users=32)

    warm-up         not judged
    floor           one user: how fast the server is when it is alone
    ceiling         as many users as the engine holds: how much it can do
    target          the workload's rate
    search          the highest rate that meets the service level, by short probes
    confirmation    a share of that rate, never below the target; longer, on fresh seeds, extended while undecided

The verdict comes from the confirmation, unless the comparison with production vetoes it. If the target window alone
shows a missed service level or impossible results, that is the verdict; otherwise it only shows how requests wait for
one another, and how windows differ. Short probes are unreliable: they find the rate to confirm, never a verdict.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from llm_pipeline.base.errors import Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.verdict import Judgement, Verdict
from llm_pipeline.config.policy import RateSearch
from llm_pipeline.loadtest.duration import CONFIRMATION_MULTIPLE, EXTENSIONS, WARM_UP_REQUESTS, alone_seconds
from llm_pipeline.loadtest.gate import judge_windows, probe_verdict
from llm_pipeline.loadtest.outcome import LoadTestOutcome, RatePoint, ServerUse
from llm_pipeline.loadtest.physics import FloorTimes, PhysicalLimits
from llm_pipeline.loadtest.records import Records
from llm_pipeline.loadtest.sample_size import MOST_RATES, looks_at_most
from llm_pipeline.loadtest.windows import Windows

_log = get_logger(__name__)

_WARMUP_SECONDS = 60.0
_ALONE_REQUESTS = 60
_REQUESTS_A_USER = 200
_BEYOND_CEILING = 1.2
"""Rates far above the closed loop's throughput are not probed."""

_CONFIRMED_SHARE = 0.9
"""Of the highest rate that the search found, what is confirmed."""


def run_session(windows: Windows, *, users: int, physics: PhysicalLimits | None = None) -> LoadTestOutcome:
    """Run a load test.

    Args:
        windows: What measures.
        users: Requests that the engine holds at a time: users of the ceiling.
        physics: What the hardware allows at best; None where that is not known.

    Raises:
        Transient: Nobody answers.
    """
    warm = warm_up(windows, users)
    seconds = alone_seconds(windows.workload)
    floor = windows.closed("floor", 1, seconds, most=_ALONE_REQUESTS, keep=True)
    windows.closed("ceiling", users, seconds, most=users * _REQUESTS_A_USER, keep=True)
    limits = Limits(FloorTimes.of(floor), physics)
    rate = windows.workload.rate_per_second
    target = windows.open("target", "target", rate, windows.workload.duration_seconds, keep=True)
    before = () if windows.summaries[-1].void else (target,)
    judgement = judge_windows(
        [target], windows.policy, floor=limits.floor, physics=physics, servers=[windows.summaries[-1].server]
    )
    if judgement.verdict is Verdict.ANOMALOUS:
        return _outcome(windows, warm, LoadDecision(judgement), ())
    rates = search(windows, target)
    if judgement.verdict is Verdict.NO_GO:
        return _outcome(windows, warm, LoadDecision(judgement), rates)
    return _outcome(windows, warm, confirm(windows, highest_passed(rates), limits, before), rates)


def warm_up(windows: Windows, users: int) -> tuple[int, float]:
    """Send requests that nothing is made of; returns their number and the seconds that they took.

    Raises:
        Transient: Not one request was answered.
    """
    started, most = time.monotonic(), WARM_UP_REQUESTS
    records = windows.warm_up(max(1, users // 2), _WARMUP_SECONDS, most=most)
    if not records.answered.any():
        raise Transient("no warm-up request was answered", where="load test", hint="look at the server's log")
    seconds = time.monotonic() - started
    _log.info("warmed up", requests=len(records), seconds=round(seconds, 2))
    return len(records), seconds


def search(windows: Windows, first: Records) -> tuple[RatePoint, ...]:
    """Look for the highest rate that meets the service level; nothing when the policy wants no search.

    Args:
        windows: What measures; its last window was the target's.
        first: The records of the target's window.
    """
    wanted, target = windows.policy.search, windows.workload.rate_per_second
    if wanted is None:
        return ()
    ceiling = next(summary for summary in windows.summaries if summary.phase == "ceiling")
    most = max(target, min(wanted.maximum_multiple * target, _BEYOND_CEILING * ceiling.answered_per_second))
    numbers = count(1)

    def probe(rate: float) -> RatePoint:
        seconds = max(wanted.window_seconds, wanted.minimum_requests / rate)
        return _point(windows, rate, windows.open(f"search-{next(numbers)}", "search", rate, seconds))

    return search_highest_rate(_point(windows, target, first), most, wanted, probe)


def _point(windows: Windows, rate: float, records: Records) -> RatePoint:
    summary = windows.summaries[-1]
    return RatePoint(
        rate_per_second=rate,
        good_fraction=summary.good_fraction,
        good_per_second=summary.good_per_second,
        verdict=probe_verdict(records, windows.policy),
        window=summary.name,
    )


def _outcome(
    windows: Windows, warm: tuple[int, float], decision: LoadDecision, rates: tuple[RatePoint, ...]
) -> LoadTestOutcome:
    return LoadTestOutcome(
        target_rate_per_second=windows.workload.rate_per_second,
        warmup_requests=warm[0],
        warmup_seconds=warm[1],
        windows=tuple(windows.summaries),
        rates=rates,
        highest_rate_per_second=highest_passed(rates),
        confirmed_rate_per_second=decision.rate_per_second,
        judgement=decision.judgement,
    )


@dataclass(frozen=True)
class LoadDecision:
    """What was decided, and at which rate; no rate when none was confirmed."""

    judgement: Judgement
    rate_per_second: float | None = None


@dataclass(frozen=True)
class Limits:
    """Limits that no answer can beat: the idle server's, and the hardware's."""

    floor: FloorTimes
    physics: PhysicalLimits | None = None


def confirm(windows: Windows, highest: float | None, limits: Limits, before: Sequence[Records] = ()) -> LoadDecision:
    """Confirm a share of the highest rate, or less, but never less than the target.

    A rate that is not confirmed is lowered towards the target, which is tried last. Every try and every extension is a
    look at data that may say GO by chance, so all of them share the error that the policy allows.

    Args:
        windows: What measures.
        highest: The highest rate that passed its probe; None when none did, or none was looked for.
        limits: Limits that no answer can beat.
        before: Windows of the target rate that show how requests wait for one another.
    """
    rates = rates_to_confirm(windows.workload.rate_per_second, highest)
    for place, rate in enumerate(rates):
        judgement = _hold(windows, place, rate, limits, before)
        if judgement.verdict in (Verdict.GO, Verdict.ANOMALOUS) or place == len(rates) - 1:
            break
        _log.info("not confirmed, a lower rate is tried", per_second=round(rate, 3), verdict=str(judgement.verdict))
    return LoadDecision(judgement, rate if judgement.verdict is Verdict.GO else None)


def rates_to_confirm(target: float, highest: float | None) -> tuple[float, ...]:
    """Rates from the share of the highest one down to the target, equal factors apart; the target is the last."""
    first = _CONFIRMED_SHARE * (highest or 0.0)
    return tuple(np.geomspace(first, target, MOST_RATES).tolist()) if first > target else (target,)


def _hold(windows: Windows, place: int, rate: float, limits: Limits, before: Sequence[Records]) -> Judgement:
    policy, held, servers = windows.policy, list[Records](), list[ServerUse]()
    looks, numbers = looks_at_most(policy), count(1)
    seconds = windows.workload.duration_seconds * CONFIRMATION_MULTIPLE / policy.seeds
    for look in range(1, EXTENSIONS + 1):
        for _ in range(policy.seeds):
            name = f"confirmation-{place + 1}-{next(numbers)}"  # `outcome.deciding_windows` reads the rate from it
            records = windows.open(name, "confirmation", rate, seconds, keep=True)
            if not windows.summaries[-1].void:  # void twice: the other windows may suffice
                held.append(records)
                servers.append(windows.summaries[-1].server)
        judgement = judge_windows(
            held or [records],
            policy,
            before=before,
            same_rate=rate == windows.workload.rate_per_second,
            look=look,
            looks=looks,
            floor=limits.floor,
            physics=limits.physics,
            servers=servers,
        )
        if judgement.verdict is not Verdict.INCONCLUSIVE:
            break
        _log.info("undecided", per_second=round(rate, 3), windows=len(held), because=judgement.summary)
    return judgement


_STEP = 2.0
_LOWEST_SHARE = 1 / 16

Probe = Callable[[float], RatePoint]


def search_highest_rate(first: RatePoint, most: float, search: RateSearch, probe: Probe) -> tuple[RatePoint, ...]:
    """Double or halve the rate from the first point until the limit is bracketed, then bisect geometrically.

    Args:
        first: What was measured at the first rate.
        most: No rate above it is tried.
        search: When to stop.
        probe: Measures one rate.

    Returns:
        All points, the first one included, by rising rate.
    """
    points, lowest = [first], first.rate_per_second * _LOWEST_SHARE
    low, high = (first.rate_per_second, None) if _passed(first) else (None, first.rate_per_second)
    while (rate := _next_rate(low, high, most, search.resolution)) is not None and rate >= lowest:
        point = probe(rate)
        points.append(point)
        low, high = (rate, high) if _passed(point) else (low, rate)
    return tuple(sorted(points, key=lambda point: point.rate_per_second))


def highest_passed(points: tuple[RatePoint, ...]) -> float | None:
    """The highest rate below which nothing failed; None when the lowest one already did."""
    highest = None
    for point in points:
        if not _passed(point):
            break
        highest = point.rate_per_second
    return highest


def _next_rate(low: float | None, high: float | None, most: float, resolution: float) -> float | None:
    if low is None:
        return None if high is None else high / _STEP
    if high is None:
        return None if low >= most else min(most, low * _STEP)
    return math.sqrt(low * high) if (high - low) / high > resolution else None


def _passed(point: RatePoint) -> bool:
    return point.verdict is Verdict.GO
