"""Measures windows one after another, each with fresh traffic, and keeps their summaries.

A summary has quantiles, rates and faults by kind. Everything is computed over the columns of
`Records`: a million requests take about a second.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.policy import LoadTestPolicy
from llm_pipeline.config.workload import Workload
from llm_pipeline.loadtest.gate import good, void_reason, worst_severity
from llm_pipeline.loadtest.measure import LoadClient, MeasuredWindow
from llm_pipeline.loadtest.outcome import QUANTILES, Latency, Phase, WindowSummary
from llm_pipeline.loadtest.records import Fault, Records, write_records
from llm_pipeline.loadtest.traffic import Traffic
from llm_pipeline.loadtest.workload import TrafficSource

_SEEDS_APART = 1000
_log = get_logger(__name__)


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
