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

Each window has fresh traffic, and a summary: quantiles, rates and faults by kind. All of it is computed over the
columns of `Records`: a million requests take about a second.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count, takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.base.errors import Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.verdict import Judgement, Verdict
from llm_pipeline.config.policy import LoadTestPolicy, RateSearch
from llm_pipeline.config.workload import Workload
from llm_pipeline.loadtest.duration import WARM_UP_REQUESTS, alone_seconds, window_seconds
from llm_pipeline.loadtest.gate import good, judge_windows, probe_verdict, void_reason, worst_severity
from llm_pipeline.loadtest.measure import LoadClient, MeasuredWindow
from llm_pipeline.loadtest.outcome import QUANTILES, Latency, LoadTestOutcome, Phase, RatePoint, WindowSummary
from llm_pipeline.loadtest.physics import PhysicalLimits
from llm_pipeline.loadtest.records import Fault, Records, write_records
from llm_pipeline.loadtest.traffic import Traffic
from llm_pipeline.loadtest.workload import TrafficSource

_log = get_logger(__name__)

_SEEDS_APART = 1000
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


class Windows:
    """The windows of one load test.

    Args:
        client: Sends.
        source: Draws the traffic.
        workload: What is drawn.
        policy: What counts as good.
        directory: Where the records of a window are kept when it is asked for; None to keep none.
    """

    def __init__(
        self,
        client: LoadClient,
        source: TrafficSource,
        workload: Workload,
        policy: LoadTestPolicy,
        directory: Path | None = None,
    ) -> None:
        self.workload, self.policy = workload, policy
        self.summaries: list[WindowSummary] = []
        self._client, self._source, self._directory = client, source, directory
        self._drawn = 0

    def closed(self, phase: Phase | None, users: int, seconds: float, *, most: int) -> Records:
        """A closed loop of so many users; one without a phase is not remembered."""
        traffic = self._source.closed_loop(users, seconds, self._next_seed(), maximum_requests=most)
        measured = self._client.send(traffic)
        return self._keep(phase, phase, traffic, measured, keep=True) if phase else measured.records.judged

    def open(self, name: str, phase: Phase, rate: float, seconds: float, *, keep: bool = False) -> Records:
        """An open loop at a rate; a void window is measured once more, with fresh traffic."""
        records = self._open(name, phase, rate, seconds, keep=keep)
        if self.summaries[-1].void:
            _log.warning("the load generator fell behind again", window=name, reason=self.summaries[-1].void)
            records = self._open(f"{name}-again", phase, rate, seconds, keep=keep)
        return records

    def in_turn(
        self, name: str, rate: float, seconds: float, *, first: int = 1
    ) -> tuple[list[Records], MeasuredWindow]:
        """The policy's windows one after another without a pause, after one that only fills the queue.

        Windows that each begin at an empty queue flatter the server: simulated with a queue for 64 at 90 % load and
        windows of 1,500 requests, first tokens at exactly the limit were a GO in 34 % of tests instead of 16 %.

        Args:
            name: What the windows' names begin with.
            rate: Requests a second.
            seconds: Length of each.
            first: Number of the first one.

        Returns:
            The records of each, and all that was sent.
        """
        seeds = [self._next_seed() for _ in range(self.policy.windows + 1)]
        traffic = self._source.windows(rate, seconds, seeds)
        sent = self._client.send(traffic)
        held = []
        for place in range(1, self.policy.windows + 1):
            span = place * seconds, (place + 1) * seconds
            records = sent.records.between(*span)
            if not len(records.judged):
                continue
            measured = MeasuredWindow(records, seconds)
            if place == self.policy.windows:  # the server's metrics cannot be divided, and are told once
                measured = replace(sent, records=records, window_seconds=seconds)
            part = traffic.between(*span)
            held.append(self._keep(f"{name}-{first + place - 1}", "confirmation", part, measured, keep=True))
        return held, sent

    def _open(self, name: str, phase: Phase, rate: float, seconds: float, *, keep: bool) -> Records:
        traffic = self._source.open_loop(rate, seconds, self._next_seed())
        return self._keep(name, phase, traffic, self._client.send(traffic), keep=keep)

    def _keep(self, name: str, phase: Phase, traffic: Traffic, measured: MeasuredWindow, *, keep: bool) -> Records:
        void = void_reason(measured.records, self.policy) if traffic.arrivals is not None else ""
        summary = summarize_window(name, phase, traffic, measured, self.policy, void=void)
        self.summaries.append(summary)
        if keep and self._directory is not None:
            write_records(self._directory / f"{name}.csv.gz", measured.records)
        first, users = summary.first_token, summary.concurrency
        _log.info(
            f"{name}: measured",
            **({"users": users} if users else {"per_second": _short(summary.offered_per_second)}),
            requests=summary.requests,
            failed=summary.failed,
            good=_short(summary.good_fraction),
            first_token_p50_ms=_short(first.p50) if first else None,
            tokens_per_second=_short(summary.output_tokens_per_second),
        )
        return measured.records

    def _next_seed(self) -> int:
        self._drawn += 1
        return self.workload.seed + _SEEDS_APART * self._drawn


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


Values = NDArray[np.float64]


def summarize_window(
    name: str, phase: Phase, traffic: Traffic, measured: MeasuredWindow, policy: LoadTestPolicy, *, void: str = ""
) -> WindowSummary:
    """Summarize one window; requests whose user left as planned are left out.

    Args:
        name: Unique in the load test.
        phase: What the window was for.
        traffic: What was sent.
        measured: What came of it.
        policy: Says what a good request is.
        void: Why the window says nothing about the server, if it does not.

    Raises:
        ValueError: There are no requests.
    """
    judged, seconds = measured.records.judged, measured.window_seconds
    if not len(judged):
        raise ValueError(f"window {name}: without requests there is no summary")
    answered = judged.answered
    kinds, counts = np.unique(judged["fault"][~answered], return_counts=True)
    order = np.argsort(-counts, kind="stable").tolist()  # the most frequent first
    faults = {Fault(int(kinds[place])): int(counts[place]) for place in order}
    return WindowSummary(
        name=name,
        phase=phase,
        requests=len(judged),
        failed=int(np.sum(~answered)),
        faults={fault.words: count for fault, count in faults.items()},
        fault_detail=next((judged.details.get(fault, "") for fault in faults), ""),
        offered_per_second=traffic.offered_per_second,
        concurrency=traffic.concurrency,
        answered_per_second=float(np.sum(answered)) / seconds,
        good_fraction=float(np.mean(good(judged, policy.service_level))),
        longest_wait_seconds=longest_wait(judged["arrives_at"], worst_severity(judged, policy.service_level)),
        output_tokens_per_second=float(np.sum(judged["output_tokens"][answered])) / seconds,
        first_token=latency(judged["first_token_seconds"][answered]),
        time_per_output_token=latency(judged.time_per_output_token_seconds[answered]),
        longest_stall=latency(judged["longest_gap_seconds"][answered]),
        end_to_end=latency(judged["total_seconds"][answered]),
        server=measured.server,
        void=void,
    )


def longest_wait(moments: Values, slowness: Values) -> float:
    """The longest time in which requests in a row were slower than the middle one: a queue that took long to empty."""
    slow = np.concatenate([[False], slowness > np.median(slowness), [False]])
    begins, ends = np.flatnonzero(np.diff(slow)).reshape(-1, 2).T
    return float(np.max(moments[np.minimum(ends, len(moments) - 1)] - moments[begins], initial=0.0))


def latency(seconds: Values) -> Latency | None:
    """A latency of several requests; NaN is left out, and None is returned when nothing remains."""
    values = seconds[~np.isnan(seconds)]
    if not values.size:
        return None
    found = 1e3 * np.quantile(values, [*QUANTILES], method="inverted_cdf")
    quantiles = dict(zip(QUANTILES.values(), found.tolist(), strict=True))
    return Latency(**quantiles, maximum=1e3 * float(values.max()))
