"""Plots of a load test's search: latency and goodput against the offered rate, with the service level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.loadtest.outcome import Latency, RatePoint, WindowSummary, deciding_windows, quantile_of
from llm_pipeline.reporting.figure import VERDICT_ROLE, Plot, colour, draw_plot, legend_below, milliseconds_axis
from llm_pipeline.reporting.model import LoadStudy
from llm_pipeline.reporting.quantities import measure

_QUANTILES = (0.5, 0.9, 0.95, 0.99)
_SIZE = (5.2, 3.4)
_MARK_DISTANCE = 0.35
_LEVEL_POINTS = 12.0
_DASHES = (0, (4, 2))
_DOTS = (0, (1, 1.5))
_MARKER = {Verdict.GO: "o", Verdict.NO_GO: "X", Verdict.INCONCLUSIVE: "^", Verdict.ANOMALOUS: "D"}


def plot_latency_by_rate(load: LoadStudy) -> Plot:
    """First-token and end-to-end latency against the offered rate, with the limits of the service level."""
    points = _points(load)
    shown = (("first token", "first_token", "candidate"), ("end to end", "end_to_end", "baseline"))
    # The service level asks for a share of the requests: the quantile of that share is what its limit is held against.
    slow = next((quantile for quantile in _QUANTILES if quantile >= load.policy.attainment), _QUANTILES[-1])

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for quantile, line, width in ((0.5, _DOTS, 1.4), (slow, "solid", 2.0)):
            for name, field, role in shown:
                rates, values = _quantiles_by_rate(points, field, quantile)
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
        _rate_axis(axes, load)
        legend_below(figure, axes, 3)

    return draw_plot(
        f"latency-by-rate-{load.target}",
        f"Latency against rate, {load.target}",
        f"One probe for each rate. The limits are for {100 * load.policy.attainment:g} % of requests: "
        f"compare them with p{100 * slow:g}.",
        draw,
        size=_SIZE,
    )


def plot_goodput(load: LoadStudy) -> Plot:
    """Requests a second that met the service level, against those that were offered."""
    outcome, attainment = load.outcome, load.policy.attainment
    windows = deciding_windows(outcome)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        most = max(point.rate_per_second for point in outcome.rates)
        axes.plot((0.0, most), (0.0, most), color=colour("muted"), linewidth=1.0, linestyle=_DOTS, label="all good")
        needed = f"{100 * attainment:g} % good: the service level"
        axes.plot(
            (0.0, most), (0.0, attainment * most), color=colour("ink"), linewidth=1.2, linestyle=_DASHES, label=needed
        )
        rates = [point.rate_per_second for point in outcome.rates]
        goods = [point.good_per_second for point in outcome.rates]
        axes.plot(rates, goods, color=colour("muted"), linewidth=1.4)
        for verdict, points in _by_verdict(outcome.rates):
            axes.scatter(
                [point.rate_per_second for point in points], [point.good_per_second for point in points], s=42,
                color=colour(VERDICT_ROLE[verdict]), marker=_MARKER[verdict], zorder=3,
                label=f"probe: {verdict.replace('_', ' ')}",
            )  # fmt: skip
        held = [window for window in windows if window.phase == "confirmation"]
        if held:
            axes.scatter(
                [window.offered_per_second for window in held], [window.good_per_second for window in held], s=70,
                marker="D", facecolors="none", edgecolors=colour("candidate"), linewidths=1.8, zorder=4,
                label="confirmation",
            )  # fmt: skip
        axes.set_ylim(bottom=0.0)
        axes.set_ylabel("good requests per second")
        _rate_axis(axes, load)
        legend_below(figure, axes, 3)

    best = max(outcome.rates, key=lambda point: point.good_per_second)
    reached = "no rate is confirmed"
    if outcome.confirmed_rate_per_second is not None and windows:
        good = sum(window.good_per_second for window in windows) / len(windows)
        reached = f"{good:.3g}/s of {outcome.confirmed_rate_per_second:.3g}/s in the confirmation"
    return draw_plot(
        f"goodput-{load.target}",
        f"Goodput against rate, {load.target}",
        f"Good requests: {reached}; the most in a probe, {best.good_per_second:.3g}/s, at {best.rate_per_second:.3g}/s "
        "offered. Short probes decide nothing.",
        draw,
        size=_SIZE,
    )


def _by_verdict(points: Sequence[RatePoint]) -> Iterator[tuple[Verdict, list[RatePoint]]]:
    for verdict in Verdict:
        found = [point for point in points if point.verdict is verdict]
        if found:
            yield verdict, found


def _points(load: LoadStudy) -> list[tuple[float, WindowSummary]]:
    """The windows of the search by rising rate."""
    windows = {window.name: window for window in load.outcome.windows}
    return [(point.rate_per_second, windows[point.window]) for point in load.outcome.rates if point.window in windows]


def _quantiles_by_rate(
    points: Sequence[tuple[float, WindowSummary]], field: str, quantile: float
) -> tuple[list[float], list[float]]:
    rates, values = [], []
    for rate, window in points:
        latency: Latency | None = getattr(window, field)
        found = quantile_of([latency], quantile)
        if found is not None:
            rates.append(rate)
            values.append(found.milliseconds)
    return rates, values


def _rate_axis(axes: Any, load: LoadStudy) -> None:
    """Offered rates from zero, with the workload's and the confirmed one marked above the axes."""
    outcome = load.outcome
    axes.set_xlim(0.0, 1.06 * max(point.rate_per_second for point in outcome.rates))
    axes.set_xlabel("requests per second offered")
    target, confirmed = outcome.target_rate_per_second, outcome.confirmed_rate_per_second
    marks = [(target, "workload, confirmed" if confirmed == target else "workload")]
    if confirmed is not None and confirmed != target:
        marks.append((confirmed, "confirmed"))
    near = len(marks) > 1 and abs(marks[1][0] - marks[0][0]) < _MARK_DISTANCE * axes.get_xlim()[1]
    for level, (rate, words) in enumerate(marks):
        axes.axvline(rate, color=colour("muted"), linewidth=0.9, linestyle=(0, (2, 2)))
        axes.annotate(
            f"{words} {rate:.3g}/s", (rate, 1.0), xycoords=axes.get_xaxis_transform(), textcoords="offset points",
            xytext=(0, 3 + _LEVEL_POINTS * level * near), ha="center", fontsize=9, color=colour("ink"),
            annotation_clip=False,
        )  # fmt: skip
