"""Which windows of a load test its verdict came from, and what they say together."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from llm_pipeline.loadtest.outcome import Latency, LoadTestOutcome, Quantile, WindowSummary


def deciding_windows(outcome: LoadTestOutcome) -> tuple[WindowSummary, ...]:
    """The windows behind the verdict: those of the last rate that was confirmed, or the target's; void ones left out.

    Windows of one confirmation are named `confirmation-<which>-<number>`.
    """
    usable = [window for window in outcome.windows if not window.void]
    confirmations = [window for window in usable if window.phase == "confirmation"]
    if confirmations:
        last = _try_of(confirmations[-1])
        return tuple(window for window in confirmations if _try_of(window) == last)
    return tuple(window for window in usable if window.phase == "target")


def _try_of(window: WindowSummary) -> str:
    return "-".join(window.name.split("-")[:2])


def quantile_of(latencies: Iterable[Latency | None], quantile: float) -> Quantile | None:
    """A quantile over several windows: the middle one's, between the lowest and the highest bound of all.

    Requests of one window are alike, so the windows say more of one another than the bounds within one.
    """
    found = [q for latency in latencies if latency for q in latency.quantiles if q.quantile == quantile]
    if not found:
        return None
    lower, upper = [q.lower for q in found], [q.upper for q in found]
    return Quantile(
        quantile=quantile,
        milliseconds=statistics.median(q.milliseconds for q in found),
        lower=min((bound for bound in lower if bound is not None), default=None) if None not in lower else None,
        upper=max((bound for bound in upper if bound is not None), default=None) if None not in upper else None,
    )
