"""Plots of a load test: distributions of latency, and whatever else of it can be drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from llm_pipeline.loadtest.outcome import WindowSummary, deciding_windows
from llm_pipeline.reporting.figure import Plot, colour, draw_plot, legend_below, milliseconds_axis
from llm_pipeline.reporting.model import LatencyCurve, LoadStudy
from llm_pipeline.reporting.over_time_plot import plot_over_time, windows_over_time
from llm_pipeline.reporting.quantities import measure
from llm_pipeline.reporting.rate_plots import plot_goodput, plot_latency_by_rate

_SIZE = (5.2, 3.4)
_DASHES = (0, (4, 2))
_DOTS = (0, (1, 1.5))


def draw_load(load: LoadStudy) -> Iterator[Plot]:
    """Every plot of a load test for which there is data."""
    curves = {curve.name: curve for curve in load.curves}
    if "first token" in curves or "end to end" in curves:
        yield plot_latency(load)
    if "time per output token" in curves:
        yield plot_token_latency(load)
    if len(load.outcome.rates) > 1:
        yield plot_latency_by_rate(load)
        yield plot_goodput(load)
    if any(window.seconds for window in windows_over_time(load)):
        yield plot_over_time(load)


def plot_latency(load: LoadStudy) -> Plot:
    """Distribution of first-token and end-to-end latency: the share of requests answered within a time."""
    return _distributions(
        load, ("first token", "end to end"), "latency", "Latency", "milliseconds from scheduled arrival"
    )


def plot_token_latency(load: LoadStudy) -> Plot:
    """Distribution of time per output token and of the longest stall in an answer."""
    return _distributions(
        load, ("time per output token", "longest stall"), "tokens", "Pace of the tokens", "milliseconds"
    )


def _distributions(load: LoadStudy, names: Sequence[str], key: str, title: str, axis: str) -> Plot:
    curves = [curve for name in names for curve in load.curves if curve.name == name]
    windows = deciding_windows(load.outcome)
    requests = sum(window.requests for window in windows)
    failed = sum(window.failed for window in windows)
    unanswered = f"the {failed:,} that failed lower the curves, not the percentiles" if failed else "none failed"

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for curve, role in zip(curves, ("candidate", "baseline"), strict=False):
            axes.step(
                curve.milliseconds, curve.shares, where="post", color=colour(role), linewidth=2.0, label=curve.name
            )
            if (limit := load.limit(curve.name)) is not None:
                named = f"its limit, {measure(limit, 'ms')}"
                axes.axvline(limit, color=colour(role), linewidth=1.2, linestyle=_DASHES, label=named)
        needed = f"needed: {100 * load.policy.attainment:g} %"
        axes.axhline(load.policy.attainment, color=colour("muted"), linewidth=1.0, linestyle=_DOTS, label=needed)
        axes.set_xscale("log")
        milliseconds_axis(axes.xaxis)
        axes.set_xlim(*_reach(load, curves))
        axes.set_ylim(0.0, 1.04)
        axes.set_ylabel("share of requests answered")
        axes.yaxis.set_major_formatter(_percent)
        axes.set_xlabel(axis)
        legend_below(figure, axes, 3)

    words = "; ".join(f"{curve.name} {_percentiles(curve)}" for curve in curves)
    words = f"{words[:1].upper()}{words[1:]}"
    return draw_plot(
        f"{key}-{load.target}",
        f"{title}, {load.target}",
        f"{words}. {requests:,} requests at {_pace(windows)}; {unanswered}.",
        draw,
        size=_SIZE,
    )


def _reach(load: LoadStudy, curves: Iterable[LatencyCurve]) -> tuple[float, float]:
    """From a little below the fastest answer to a little above the slowest, or the larger limit."""
    values = [value for curve in curves for value in (curve.milliseconds[0], curve.milliseconds[-1])]
    limits = [limit for curve in curves if (limit := load.limit(curve.name)) is not None]
    return 0.75 * min(*values, *limits), 1.35 * max(*values, *limits)


def _percentiles(curve: LatencyCurve) -> str:
    """Of the answered requests."""
    shares = np.array(curve.shares) / curve.shares[-1]
    middle, slow = (curve.milliseconds[int(np.searchsorted(shares, quantile))] for quantile in (0.5, 0.95))
    return f"p50 {measure(middle, 'ms')}, p95 {measure(slow, 'ms')}"


def _pace(windows: Sequence[WindowSummary]) -> str:
    offered = [window.offered_per_second for window in windows if window.offered_per_second is not None]
    return f"{sum(offered) / len(offered):.3g} requests/s" if offered else "no schedule"


def _percent(share: float, _: int) -> str:
    return f"{100 * share:.0f} %"
