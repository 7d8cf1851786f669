"""A load test from the first request to the verdict.

    outcome = run_session(windows, users=32)

    warm-up         not judged
    floor           one user: how fast the server is when it is alone
    ceiling         as many users as the engine holds: how much it can do
    target          the workload's rate
    search          the highest rate that meets the service level, by short probes
    confirmation    a share of that rate, never below the target: the windows that the gate judges

The verdict comes from the confirmation, unless the comparison with production vetoes it. If parts of the target's
window already show a missed service level or impossible results, that is the verdict; otherwise it only shows for how
long requests wait for one another, and windows become so long that a wait is a small part of one. Short probes are
unreliable: they find the rate to confirm, never a verdict.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import count, takewhile

import numpy as np

from llm_pipeline.base.errors import Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.verdict import Judgement, Verdict
from llm_pipeline.config.policy import LoadTestPolicy, RateSearch
from llm_pipeline.loadtest.duration import WARM_UP_REQUESTS, alone_seconds, window_seconds
from llm_pipeline.loadtest.gate import judge_windows, probe_verdict, void_reason
from llm_pipeline.loadtest.measure import MeasuredWindow
from llm_pipeline.loadtest.outcome import LoadTestOutcome, RatePoint
from llm_pipeline.loadtest.physics import PhysicalLimits
from llm_pipeline.loadtest.records import Records
from llm_pipeline.loadtest.windows import Windows

_log = get_logger(__name__)

_WARMUP_SECONDS = 60.0
_ALONE_REQUESTS = 60
_REQUESTS_A_USER = 200
_BEYOND_CEILING = 1.2
"""Rates far above the closed loop's throughput are not probed."""

_CONFIRMED_SHARES = 0.9, 0.7
"""Of the highest rate that the search found, what is confirmed: the second where the first was not, then the target."""

_WAITS_A_WINDOW = 20.0
"""How many times as long as the longest wait a window is: `benchmarks/load_gate.py` shows what it is worth."""

_MOST_RUNS = 2
"""If most windows of a confirmation are void, it is sent once more."""


def run_session(windows: Windows, *, users: int, physics: PhysicalLimits | None = None) -> LoadTestOutcome:
    """Run a load test.

    Args:
        windows: What measures.
        users: Requests that the engine holds at a time: users of the ceiling.
        physics: What the hardware allows at best; None where that is not known.

    Raises:
        Transient: Nobody answers.
    """
    warm_up(windows, users)
    seconds = alone_seconds(windows.workload)
    windows.closed("floor", 1, seconds, most=_ALONE_REQUESTS)
    windows.closed("ceiling", users, seconds, most=users * _REQUESTS_A_USER)
    workload, policy = windows.workload, windows.policy
    target = windows.open("target", "target", workload.rate_per_second, workload.duration_seconds, keep=True)
    sent = MeasuredWindow(target, workload.duration_seconds, windows.summaries[-1].server)
    place = np.arange(len(target)) * policy.windows // max(1, len(target))
    parts = [target.where(place == number) for number in range(policy.windows)]
    judgement = judge_windows(parts, policy, sent=[sent], physics=physics)
    rates, confirmed = tuple[RatePoint, ...](), None
    if judgement.verdict is not Verdict.ANOMALOUS:
        rates = search(windows, target)
    if judgement.verdict not in (Verdict.ANOMALOUS, Verdict.NO_GO):
        judgement, confirmed = confirm(windows, rates, physics)
    return LoadTestOutcome(
        target_rate_per_second=workload.rate_per_second,
        windows=tuple(windows.summaries),
        rates=rates,
        highest_rate_per_second=highest_passed(rates),
        confirmed_rate_per_second=confirmed,
        judgement=judgement,
    )


def warm_up(windows: Windows, users: int) -> None:
    """Send requests that nothing is made of.

    Raises:
        Transient: Not one request was answered.
    """
    started, most = time.monotonic(), WARM_UP_REQUESTS
    records = windows.closed(None, max(1, users // 2), _WARMUP_SECONDS, most=most)
    if not records.answered.any():
        raise Transient("no warm-up request was answered", where="load test", hint="look at the server's log")
    _log.info("warmed up", requests=len(records), seconds=round(time.monotonic() - started, 2))


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
        verdict=probe_verdict(records, windows.policy),
        window=summary.name,
    )


def confirm(
    windows: Windows, rates: tuple[RatePoint, ...], physics: PhysicalLimits | None = None
) -> tuple[Judgement, float | None]:
    """Confirm a share of the highest rate, or less, but never less than the target.

    A rate that is not confirmed is lowered towards the target, which is tried last.

    Args:
        windows: What measures.
        rates: The search's probes, by rising rate; none when none was looked for.
        physics: What the hardware allows at best.

    Returns:
        What was decided, and at which rate; no rate when none was confirmed.
    """
    workload, policy = windows.workload, windows.policy
    shown = {point.window for point in rates if _passed(point)}
    waits = [w.longest_wait_seconds for w in windows.summaries if w.phase == "target" or w.name in shown]
    seconds = windows_grown(window_seconds(workload), max(waits, default=0.0), policy)
    for place, rate in enumerate(rates_to_confirm(workload.rate_per_second, highest_passed(rates)), start=1):
        held, sent = list[Records](), list[MeasuredWindow]()
        for _ in range(_MOST_RUNS):
            # `outcome.deciding_windows` reads the rate from the name
            records, run = windows.in_turn(f"confirmation-{place}", rate, seconds, first=len(held) + 1)
            held += records
            sent.append(run)
            void = sum(bool(void_reason(window, policy)) for window in records)
            if 2 * void <= len(records):
                break
            _log.warning("the load generator fell behind in most windows", void=void, windows=len(records))
        judgement = judge_windows(held, policy, sent=sent, physics=physics)
        if judgement.verdict in (Verdict.GO, Verdict.ANOMALOUS):
            break
        _log.info("not confirmed", per_second=round(rate, 3), verdict=str(judgement.verdict))
    return judgement, rate if judgement.verdict is Verdict.GO else None


def windows_grown(length: float, longest_wait: float, policy: LoadTestPolicy) -> float:
    """Windows of a length, or longer ones where requests wait long for one another."""
    return min(policy.window_growth * length, max(length, _WAITS_A_WINDOW * longest_wait))


def rates_to_confirm(target: float, highest: float | None) -> tuple[float, ...]:
    """Shares of the highest rate that are above the target, and the target, which is the last."""
    shares = [share * (highest or 0.0) for share in _CONFIRMED_SHARES]
    return (*(rate for rate in shares if rate > target), target)


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
    passed = [point.rate_per_second for point in takewhile(_passed, points)]
    return passed[-1] if passed else None


def _next_rate(low: float | None, high: float | None, most: float, resolution: float) -> float | None:
    if low is None:
        return None if high is None else high / _STEP
    if high is None:
        return None if low >= most else min(most, low * _STEP)
    return math.sqrt(low * high) if (high - low) / high > resolution else None


def _passed(point: RatePoint) -> bool:
    return point.verdict is Verdict.GO
