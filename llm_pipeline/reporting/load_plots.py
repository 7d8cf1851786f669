"""Plots of a load test: the distribution of latencies, latency against the offered rate, and traffic over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from llm_pipeline.base.quantities import measure
from llm_pipeline.loadtest.outcome import QUANTILES, WindowSummary, deciding_windows, quantile_of
from llm_pipeline.reporting.figure import Plot, colour, draw_plot, legend_below, milliseconds_axis
from llm_pipeline.reporting.model import LatencyCurve, LoadStudy, TrafficSeries


def plot_over_time(load: LoadStudy, series: TrafficSeries) -> Plot:
    """Requests, tokens and the longest stall over time, of the windows that decided, one after another."""
    windows = deciding_windows(load.outcome)
    edges, longest = series.edges, np.array(series.longest_stall_milliseconds)
    failed = sum(window.failed for window in windows)
    limit = load.policy.service_level.longest_stall_milliseconds

    def draw(figure: Any) -> None:
        traffic, tokens, stalls = panels = figure.subplots(3, 1, sharex=True, height_ratios=(1.3, 1.0, 1.0))
        traffic.stairs(series.arrived, edges, baseline=None, color=colour("muted"), linewidth=1.3, label="arrived")
        traffic.stairs(series.good, edges, baseline=None, color=colour("good"), linewidth=1.8, label="good")
        if failed:
            traffic.stairs(series.failed, edges, color=colour("bad"), fill=True, label="failed")
        traffic.set_title("requests per second")
        traffic.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.0, ncols=3, fontsize=9)
        tokens.stairs(series.output_tokens, edges, baseline=None, color=colour("candidate"), linewidth=1.8)
        tokens.set_title("output tokens per second")
        stalls.stairs(longest, edges, color=colour("candidate"), fill=True, alpha=0.75)
        if limit is not None:
            stalls.stairs(np.where(longest > limit, longest, 0.0), edges, color=colour("bad"), fill=True)
            stalls.axhline(limit, color=colour("ink"), linewidth=1.2, linestyle=_DASHES)
        named = "" if limit is None else f"; limit {measure(limit, 'ms')}"
        stalls.set_title(f"longest stall within an answer, milliseconds{named}")
        for axes in panels:
            axes.set_ylim(bottom=0.0)
            for start in series.starts[1:]:
                axes.axvline(start, color=colour("muted"), linewidth=0.9, linestyle=(0, (2, 2)))
        stalls.set_xlim(0.0, edges[-1])
        stalls.set_xlabel("seconds, by scheduled arrival")

    phases = Counter(window.phase for window in windows)
    names = ", ".join(f"{phase} ({count} windows)" if count > 1 else phase for phase, count in phases.items())
    several = ", one after another" if len(windows) > 1 else ""
    return draw_plot(
        f"over-time-{load.target}",
        f"Throughput and stalls over time, {load.target}",
        f"{names[:1].upper()}{names[1:]}{several}; {failed:,} requests failed; the longest stall within an answer took "
        f"{measure(float(longest.max(initial=0.0)), 'ms')}.",
        draw,
        size=(11.4, 5.6),
    )


def plot_latency_by_rate(load: LoadStudy) -> Plot:
    """First-token and end-to-end latency against the offered rate, with the limits of the service level."""
    outcome, by_name = load.outcome, {window.name: window for window in load.outcome.windows}
    points = [(point.rate_per_second, by_name[point.window]) for point in outcome.rates if point.window in by_name]
    shown = (("first token", "first_token", "candidate"), ("end to end", "end_to_end", "baseline"))
    # The service level asks for a share of the requests: the quantile of that share is what its limit is held against.
    slow = next((quantile for quantile in QUANTILES if quantile >= load.policy.attainment), max(QUANTILES))

    rates = [rate for rate, _ in points]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for quantile, line, width in ((0.5, _DOTS, 1.4), (slow, "solid", 2.0)):
            for name, field, role in shown:
                found = [quantile_of([getattr(window, field)], quantile) for _, window in points]
                values = np.array(found, dtype=float)  # None becomes NaN
                axes.plot(
                    rates, values, color=colour(role), linewidth=width, linestyle=line, marker="o", markersize=3.5,
                    label=f"{name} p{100 * quantile:g}",
                )  # fmt: skip
        for name, _, role in shown:
            if (limit := load.limit(name)) is not None:
                named = f"its limit, {measure(limit, 'ms')}"
                axes.axhline(limit, color=colour(role), linewidth=1.2, linestyle=_DASHES, label=named)
        axes.set_yscale("log")
        milliseconds_axis(axes.yaxis)
        axes.set_ylabel("milliseconds")
        axes.set_xlim(0.0, 1.06 * max(point.rate_per_second for point in outcome.rates))
        axes.set_xlabel("requests per second offered")
        target, confirmed = outcome.target_rate_per_second, outcome.confirmed_rate_per_second
        for rate, words, style in ((target, "workload", (0, (2, 2))), (confirmed, "confirmed", "solid")):
            if rate is not None:
                named = f"{words}, {rate:.3g}/s"
                axes.axvline(rate, color=colour("muted"), linewidth=0.9, linestyle=style, label=named)
        legend_below(figure, axes)

    return draw_plot(
        f"latency-by-rate-{load.target}",
        f"Latency against rate, {load.target}",
        f"One probe for each rate. The limits are for {100 * load.policy.attainment:g} % of requests: "
        f"compare them with p{100 * slow:g}.",
        draw,
        size=_SIZE,
    )


_SIZE = (5.2, 3.4)
_DASHES = (0, (4, 2))
_DOTS = (0, (1, 1.5))


def draw_load(load: LoadStudy) -> Iterator[Plot]:
    """Every plot of a load test for which there is data."""
    if load.curves:
        yield plot_latency(load)
    if len(load.outcome.rates) > 1:
        yield plot_latency_by_rate(load)
    if load.series is not None:
        yield plot_over_time(load, load.series)


def plot_latency(load: LoadStudy) -> Plot:
    """Distribution of first-token and end-to-end latency: the share of requests answered within a time."""
    curves, windows = load.curves, deciding_windows(load.outcome)
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
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
        axes.set_xlabel("milliseconds from scheduled arrival")
        legend_below(figure, axes)

    words = "; ".join(f"{curve.name} {_percentiles(curve)}" for curve in curves)
    return draw_plot(
        f"latency-{load.target}",
        f"Latency, {load.target}",
        f"{words[:1].upper()}{words[1:]}. {requests:,} requests at {_pace(windows)}; {unanswered}.",
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
