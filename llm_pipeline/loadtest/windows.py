"""Measures windows one after another, each with fresh traffic, and keeps their summaries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.policy import LoadTestPolicy
from llm_pipeline.config.workload import Workload
from llm_pipeline.loadtest.gate import void_reason
from llm_pipeline.loadtest.measure import LoadClient
from llm_pipeline.loadtest.outcome import Phase, WindowSummary
from llm_pipeline.loadtest.records import Records, write_records
from llm_pipeline.loadtest.summary import summarize_window
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

    def closed(self, phase: Phase, users: int, seconds: float, *, most: int, keep: bool = False) -> Records:
        """A closed loop of so many users."""
        seed = self._next_seed()
        traffic = self._source.closed_loop(users, seconds, seed, maximum_requests=most)
        return self._measure(phase, phase, seed, traffic, keep=keep)

    def warm_up(self, users: int, seconds: float, *, most: int) -> Records:
        """A closed loop that is not remembered."""
        traffic = self._source.closed_loop(users, seconds, self._next_seed(), maximum_requests=most)
        return self._client.send(traffic).records.judged

    def open(self, name: str, phase: Phase, rate: float, seconds: float, *, keep: bool = False) -> Records:
        """An open loop at a rate; a void window is measured once more, with fresh traffic."""
        records = self._open(name, phase, rate, seconds, keep=keep)
        if self.summaries[-1].void:
            _log.warning("the load generator fell behind again", window=name, reason=self.summaries[-1].void)
            records = self._open(f"{name}-again", phase, rate, seconds, keep=keep)
        return records

    def _open(self, name: str, phase: Phase, rate: float, seconds: float, *, keep: bool) -> Records:
        seed = self._next_seed()
        return self._measure(name, phase, seed, self._source.open_loop(rate, seconds, seed), keep=keep)

    def _measure(self, name: str, phase: Phase, seed: int, traffic: Traffic, *, keep: bool) -> Records:
        measured = self._client.send(traffic)
        void = void_reason(measured.records, self.policy) if traffic.arrivals is not None else ""
        summary = summarize_window(name, phase, seed, traffic, measured, self.policy, void=void)
        self.summaries.append(summary)
        if keep and self._directory is not None:
            write_records(self._directory / f"{name}.csv.gz", measured.records)
        _log.info(f"{name}: measured", **_figures(summary))
        return measured.records

    def _next_seed(self) -> int:
        self._drawn += 1
        return self.workload.seed + _SEEDS_APART * self._drawn


def _figures(summary: WindowSummary) -> dict[str, Any]:
    pace = {"users": summary.concurrency} if summary.concurrency else {"per_second": _short(summary.offered_per_second)}
    first = summary.first_token
    return {
        **pace,
        "requests": summary.requests,
        "failed": summary.failed,
        "good": _short(summary.good_fraction),
        "first_token_p50_ms": _short(first.quantiles[0].milliseconds) if first else None,
        "tokens_per_second": _short(summary.output_tokens_per_second),
    }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
