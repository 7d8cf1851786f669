"""Plots of a canary over time: traffic split, rates, latencies and errors; and e-values beside what decides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from llm_pipeline.canary.analysis import LARGEST
from llm_pipeline.canary.record import EventKind
from llm_pipeline.canary.timeline import ArmPoint, CanarySummary, EvidenceSeries, TimelinePoint
from llm_pipeline.reporting.figure import Plot, colour, draw_plot

Quantiles = Callable[[ArmPoint], tuple[float | None, float | None]]
"""Median and 95th percentile of an arm's latency in an interval."""

_MOMENTS = {
    EventKind.STARTED: "candidate started",
    EventKind.SHIFTED: "{:g} %",
    EventKind.PAUSED: "paused",
    EventKind.APPROVAL_ASKED: "paused",
    EventKind.PAUSED_BY_PERSON: "paused by a person",
    EventKind.RESUMED: "resumed",
    EventKind.PROMOTED: "promoted",
    EventKind.ROLLING_BACK: "rolling back",
    EventKind.ROLLED_BACK: "traffic on stable",
}
_NEAR_SHARE = 0.03
_MOST_MEASUREMENTS = 48
"""Of the split: each is over so many requests that chance moves it little."""


def plot_canary(target: str, canary: CanarySummary) -> Plot:
    """Traffic split, both arms' rates, latencies and errors, over the canary's time."""
    samples = canary.points
    seconds = np.array([sample.at_seconds for sample in samples])

    def draw(figure: Any) -> None:
        panels = figure.subplots(5, 1, sharex=True, height_ratios=(1.0, 1.0, 1.4, 1.4, 0.8))
        split, rates, first_token, end_to_end, errors = panels
        _split_panel(split, seconds, samples)
        _rate_panel(rates, samples)
        _latency_panel(first_token, canary, "first token", attrgetter("first_token_p50", "first_token_p95"))
        _latency_panel(end_to_end, canary, "end to end", attrgetter("end_to_end_p50", "end_to_end_p95"))
        _error_panel(errors, seconds, samples)
        first, last = _mark_moments(panels, canary)
        labels: dict[float, str] = {}
        for at, label in _moments(canary):
            before = next(reversed(labels), first - last)
            if at - before < _NEAR_SHARE * (last - first):  # two texts would overlap
                labels[before] += f", {label}"
            else:
                labels[at] = label
        moments = split.secondary_xaxis("top")
        moments.set_xticks(list(labels), list(labels.values()), rotation=25, ha="left")
        moments.tick_params(length=0, labelsize=9, labelcolor=colour("ink"))
        moments.spines["top"].set_visible(False)

    requests = sum(sample.candidate.requests for sample in samples)
    failed = sum(sample.candidate.errors for sample in samples)
    lost = sum(sample.candidate.lost + sample.stable.lost for sample in samples)
    moments = ", ".join(f"{label} at {at:.0f} s" for at, label in _moments(canary))
    return draw_plot(
        f"canary-{target}",
        f"Canary, {target}",
        f"{requests:,} requests were sent to the candidate, {failed:,} of them ended in an error; "
        f"users lost {lost:,} on either side. Moments: {moments}.",
        draw,
        size=(11.4, 9.0),
    )


def _moments(canary: CanarySummary) -> list[tuple[float, str]]:
    """Seconds into the canary and a short label of each event that has a line."""
    told = [event for event in canary.events if event.kind in _MOMENTS]
    return [(event.at - canary.began_at, _MOMENTS[event.kind].format(event.percent)) for event in told]


def _mark_moments(panels: Sequence[Any], canary: CanarySummary) -> tuple[float, float]:
    """Draw a line through all panels at each moment, and the time axis below the last; returns its ends."""
    looks = canary.evidence.looks if canary.evidence else ()
    moments = [at for at, _ in _moments(canary)]
    shown = [*(s.at_seconds for s in canary.points), *moments, *(look.at for look in looks)]
    first, last = min(0.0, *shown), max(1.0, *shown)
    for axes in panels:
        for at in moments:
            axes.axvline(at, color=colour("muted"), linewidth=0.9, linestyle=(0, (2, 2)))
    panels[-1].set_xlim(first - 0.01 * (last - first), last + 0.01 * (last - first))
    panels[-1].set_xlabel("seconds into the canary")
    return first, last


def _split_panel(axes: Any, seconds: Any, samples: Sequence[TimelinePoint]) -> None:
    percent = [sample.percent for sample in samples]
    axes.fill_between(seconds, percent, step="post", color=colour("candidate"), alpha=0.28, linewidth=0)
    axes.step(seconds, percent, where="post", color=colour("candidate"), linewidth=2.0)
    if measured := measured_split(samples):
        axes.plot(*zip(*measured, strict=True), "o", markersize=3.4, color=colour("ink"), clip_on=False)
    axes.set_ylim(0.0, 102.0)
    axes.set_yticks((0, 50, 100), ("0 %", "50 %", "100 %"))
    axes.set_title("traffic to the candidate: intended, and measured as dots")


def measured_split(samples: Sequence[TimelinePoint]) -> list[tuple[float, float]]:
    """The middle of a few intervals of one step, and the candidate's share of their requests in percent."""
    size = max(1, math.ceil(len(samples) / _MOST_MEASUREMENTS))
    measured, group = [], list[TimelinePoint]()
    for sample, following in zip(samples, (*samples[1:], None), strict=True):
        group.append(sample)
        if following is None or len(group) == size or following.percent != sample.percent:
            mine = sum(one.candidate.requests for one in group)
            if total := mine + sum(one.stable.requests for one in group):
                middle = (group[0].at_seconds + sample.at_seconds + sample.length_seconds) / 2
                measured.append((middle, 100.0 * mine / total))
            group = []
    return measured


def _arms(samples: Sequence[TimelinePoint]) -> tuple[tuple[str, str, list[ArmPoint]], ...]:
    """Each arm's name, its role in a plot, and its points."""
    return (
        ("stable", "baseline", [sample.stable for sample in samples]),
        ("candidate", "candidate", [sample.candidate for sample in samples]),
    )


def _rate_panel(axes: Any, samples: Sequence[TimelinePoint]) -> None:
    edges = np.array([*(sample.at_seconds for sample in samples), samples[-1].at_seconds + samples[-1].length_seconds])
    for arm, role, points in _arms(samples):
        rates = np.array([one.requests for one in points]) / np.diff(edges)
        axes.stairs(rates, edges, baseline=None, color=colour(role), linewidth=1.8, label=arm)
    axes.set_ylim(bottom=0.0)
    _title(axes, "requests per second")


def _latency_panel(axes: Any, canary: CanarySummary, name: str, quantiles: Quantiles) -> None:
    """Both arms' latency; a candidate with few requests shows as dots, joined where intervals follow each other."""
    seconds = [sample.at_seconds for sample in canary.points]
    any_value = False
    for arm, role, points in _arms(canary.points):
        middle, slow = np.array([quantiles(point) for point in points], dtype=float).T  # None becomes NaN
        shown: dict[str, Any] = {"color": colour(role), "marker": "o", "markersize": 3.0}
        axes.plot(seconds, middle, linewidth=2.0, label=f"{arm} p50", **shown)
        axes.plot(seconds, slow, linewidth=1.2, linestyle=(0, (3, 1.5)), label=f"{arm} p95", **shown)
        any_value = any_value or bool(np.isfinite(middle).any())
    axes.set_ylim(bottom=0.0)
    _title(axes, f"{name}, milliseconds{'' if any_value else ': no answers'}")


def _error_panel(axes: Any, seconds: Any, samples: Sequence[TimelinePoint]) -> None:
    width = float(np.median(np.diff(seconds))) if len(samples) > 1 else 1.0
    stable = np.array([sample.stable.errors for sample in samples])
    canary = np.array([sample.candidate.errors for sample in samples])
    axes.bar(seconds, stable, width=width, color=colour("baseline"), label="stable")
    axes.bar(seconds, canary, width=width, bottom=stable, color=colour("bad"), label="candidate")
    axes.set_ylim(0.0, max(1.0, 1.25 * float((stable + canary).max(initial=0.0))))
    axes.yaxis.get_major_locator().set_params(integer=True, nbins=3)
    if stable.any() or canary.any():
        _title(axes, "errors per interval")
    else:
        axes.set_title("errors per interval: none")


def _title(axes: Any, text: str) -> None:
    """The title, and the legend on its line."""
    axes.set_title(text)
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.0, ncols=4, fontsize=9, handlelength=1.6)


_ROLES = ("bad", "candidate", "baseline", "unsure")
"""Colour of each metric, in the order of the analysis: failed answers come first."""

_LEAST = 1e-3
"""Evidence for the null hypothesis, which decides nothing, is drawn no lower."""

_MOST = 1e6
_WHOLE_FROM = 100.0


def plot_evidence(target: str, canary: CanarySummary, evidence: EvidenceSeries) -> Plot:
    """E-values of regressions and of a wrong split, over the canary's time."""
    seconds = np.array([look.at for look in evidence.looks])

    def draw(figure: Any) -> None:
        panels = figure.subplots(2, 1, sharex=True, height_ratios=(1.5, 0.8))
        worse = np.array([look.regressed for look in evidence.looks])
        split = np.array([[look.split] for look in evidence.looks])
        for axes, values, limit in (
            (panels[0], worse, evidence.regressed_at),
            (panels[1], split, evidence.split_wrong_at),
        ):
            for number, drawn in enumerate(np.clip(values, _LEAST, _MOST).T):
                name, role = (evidence.metrics[number], _ROLES[number]) if values is worse else ("split", "ink")
                axes.plot(seconds, drawn, color=colour(role), linewidth=1.8, label=name)
            axes.axhline(limit, color=colour("ink"), linewidth=1.1, linestyle=(0, (4, 2)))
            axes.set_yscale("log")
            axes.set_ylim(min(0.1, values.min()), 10 * max(1e3, limit, values.max()))
            axes.yaxis.get_major_locator().set_params(numticks=6)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.yaxis.set_minor_formatter(lambda _value, _: "")
        _title(panels[0], f"regressions: e-values, threshold {e_value(evidence.regressed_at)}")
        panels[1].set_title(f"wrong traffic split: e-value, threshold {e_value(evidence.split_wrong_at)}")
        _mark_moments(panels, canary)

    return draw_plot(
        f"evidence-{target}", f"Evidence over time, {target}", evidence_in_words(evidence), draw, size=(11.4, 5.0)
    )


def evidence_in_words(evidence: EvidenceSeries) -> str:
    """The strongest evidence of a regression beside its threshold."""
    highest = [max(values) for values in zip(*(look.regressed for look in evidence.looks), strict=True)]
    strongest = max(highest)
    reached = "reached" if strongest >= evidence.regressed_at else "did not reach"
    return (
        f"The strongest evidence against the candidate, {evidence.metrics[highest.index(strongest)]}, {reached} its "
        f"threshold: e-value {e_value(strongest)}, threshold {e_value(evidence.regressed_at)}. An e-value is what a "
        f"bet against a hypothesis has made of 1: if the hypothesis holds, it ever reaches a threshold of x with a "
        f"chance of at most 1 / x."
    )


def e_value(value: float) -> str:
    """An e-value for people: three digits, or all before the point."""
    if value >= LARGEST:
        return f"over {LARGEST:.0e}"
    return f"{value:,.0f}" if value >= _WHOLE_FROM else f"{value:.3g}"
