"""Plots of a canary over time: traffic split, rates, latencies and errors; and e-values beside what decides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np

from llm_pipeline.canary.analysis import LARGEST
from llm_pipeline.canary.observations import ArmPoint, TimelinePoint
from llm_pipeline.canary.timeline import EvidenceSeries, TimelineMark
from llm_pipeline.reporting.figure import NARROW_INCHES, Plot, colour, draw_plot
from llm_pipeline.reporting.model import CanaryStudy

Quantiles = Callable[[ArmPoint], tuple[float | None, float | None]]
"""Median and 95th percentile of an arm's latency in an interval."""

_MOST_MEASUREMENTS = 48
"""Of the split: each is over so many requests that chance moves it little."""

_MARK_DISTANCE = 0.012
_CHARACTER_INCHES = 0.07
_LEVEL_POINTS = 12.0


def plot_canary(study: CanaryStudy) -> Plot:
    """Traffic split, both arms' rates, latencies and errors, over the canary's time."""
    samples = study.samples
    seconds = np.array([sample.at_seconds for sample in samples])

    def draw(figure: Any) -> None:
        panels = figure.subplots(5, 1, sharex=True, height_ratios=(1.0, 1.0, 1.4, 1.4, 0.8))
        split, rates, first_token, end_to_end, errors = panels
        highest = write_marks(split, study, figure.get_figwidth())
        _split_panel(split, seconds, samples, pad=8.0 + _LEVEL_POINTS * (highest + 1))
        _rate_panel(rates, samples)
        _latency_panel(first_token, study, "first token", attrgetter("first_token_p50", "first_token_p95"))
        _latency_panel(end_to_end, study, "end to end", attrgetter("end_to_end_p50", "end_to_end_p95"))
        _error_panel(errors, seconds, samples)
        for axes in panels:
            for mark in study.marks:
                axes.axvline(mark.at_seconds, color=colour("muted"), linewidth=0.9, linestyle=(0, (2, 2)))
        errors.set_xlabel("seconds into the canary")
        first, last = span(study)
        errors.set_xlim(first - 0.01 * (last - first), last + 0.01 * (last - first))

    requests = sum(sample.candidate.requests for sample in samples)
    failed = sum(sample.candidate.errors for sample in samples)
    lost = sum(sample.candidate.lost + sample.stable.lost for sample in samples)
    marks = ", ".join(f"{mark.label} at {mark.at_seconds:.0f} s" for mark in study.marks)
    return draw_plot(
        f"canary-{study.target}",
        f"Canary, {study.target}",
        f"{requests:,} requests were sent to the candidate, {failed:,} of them ended in an error; "
        f"users lost {lost:,} on either side. Moments: {marks}.",
        draw,
        size=(11.4, 8.6),
        narrow_size=(6.4, 8.6),
    )


def write_marks(axes: Any, study: CanaryStudy, figure_inches: float) -> int:
    """Write the marks above the panel, each on the lowest level where it meets no other; returns the highest level."""
    first, last = span(study)
    inches = (figure_inches - 1.0) / (last - first)
    ends: list[float] = []
    for mark in _merged(study):
        width = (len(mark.label) + 1) * _CHARACTER_INCHES / inches
        turned = mark.at_seconds + width > last
        start = mark.at_seconds - width if turned else mark.at_seconds
        level = next((level for level, end in enumerate(ends) if end <= start), len(ends))
        ends[level : level + 1] = [start + width]
        axes.annotate(
            mark.label, (mark.at_seconds, 1.0), xycoords=axes.get_xaxis_transform(), textcoords="offset points",
            xytext=(0, 3 + _LEVEL_POINTS * level), ha="right" if turned else "left", fontsize=9, color=colour("ink"),
            annotation_clip=False,
        )  # fmt: skip
    return max(len(ends) - 1, 0)


def span(study: CanaryStudy) -> tuple[float, float]:
    """First and last second of a plot."""
    looks = study.evidence.looks if study.evidence else ()
    moments = [
        *(sample.at_seconds for sample in study.samples),
        *(mark.at_seconds for mark in study.marks),
        *(look.at for look in looks),
    ]
    return min(0.0, *moments), max(1.0, *moments)


def _merged(study: CanaryStudy) -> list[TimelineMark]:
    """Marks too close for two texts side by side share one."""
    began, ended = span(study)
    merged: list[TimelineMark] = []
    for mark in study.marks:
        if merged and mark.at_seconds - merged[-1].at_seconds < _MARK_DISTANCE * (ended - began):
            last = merged.pop()
            merged.append(TimelineMark(at_seconds=last.at_seconds, label=f"{last.label}, {mark.label}"))
        else:
            merged.append(mark)
    return merged


def _split_panel(axes: Any, seconds: Any, samples: Sequence[TimelinePoint], *, pad: float) -> None:
    percent = [sample.percent for sample in samples]
    axes.fill_between(seconds, percent, step="post", color=colour("candidate"), alpha=0.28, linewidth=0)
    axes.step(seconds, percent, where="post", color=colour("candidate"), linewidth=2.0, label="intended")
    measured = list(measured_split(samples))
    if measured:
        moments, shares = zip(*measured, strict=True)
        axes.plot(moments, shares, "o", markersize=3.4, color=colour("ink"), label="measured", clip_on=False, zorder=3)
    axes.set_ylim(0.0, 102.0)
    axes.set_yticks((0, 50, 100), ("0 %", "50 %", "100 %"))
    axes.set_title("traffic to the candidate: intended, and measured as dots", pad=pad)


def measured_split(samples: Sequence[TimelinePoint]) -> Iterator[tuple[float, float]]:
    """The middle of a few intervals of one step, and the candidate's share of their requests in percent."""
    size = max(1, math.ceil(len(samples) / _MOST_MEASUREMENTS))
    for _, same in groupby(samples, key=lambda sample: sample.percent):
        step = list(same)
        for group in (step[first : first + size] for first in range(0, len(step), size)):
            mine = sum(sample.candidate.requests for sample in group)
            total = mine + sum(sample.stable.requests for sample in group)
            if total:
                yield (group[0].at_seconds + group[-1].at_seconds + group[-1].length_seconds) / 2, 100.0 * mine / total


def _rate_panel(axes: Any, samples: Sequence[TimelinePoint]) -> None:
    edges = np.array([*(sample.at_seconds for sample in samples), samples[-1].at_seconds + samples[-1].length_seconds])
    for arm, role, arms in (
        ("stable", "baseline", [sample.stable for sample in samples]),
        ("candidate", "candidate", [sample.candidate for sample in samples]),
    ):
        rates = np.array([one.requests for one in arms]) / np.diff(edges)
        axes.stairs(rates, edges, baseline=None, color=colour(role), linewidth=1.8, label=arm)
    axes.set_ylim(bottom=0.0)
    axes.set_title("requests per second", pad=20)
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.0, ncols=2, fontsize=9, handlelength=1.6)


def _latency_panel(axes: Any, study: CanaryStudy, name: str, quantiles: Quantiles) -> None:
    """Both arms' latency; a candidate with few requests shows as dots, joined where intervals follow each other."""
    seconds = [sample.at_seconds for sample in study.samples]
    any_value = False
    for arm, role, arms in (
        ("stable", "baseline", [sample.stable for sample in study.samples]),
        ("candidate", "candidate", [sample.candidate for sample in study.samples]),
    ):
        middle, slow = (_series(values) for values in zip(*map(quantiles, arms), strict=True))
        shown: dict[str, Any] = {"color": colour(role), "marker": "o", "markersize": 3.0}
        axes.plot(seconds, middle, linewidth=2.0, label=f"{arm} p50", **shown)
        axes.plot(seconds, slow, linewidth=1.2, linestyle=(0, (3, 1.5)), label=f"{arm} p95", **shown)
        any_value = any_value or bool(np.isfinite(middle).any())
    axes.set_ylim(bottom=0.0)
    axes.set_title(f"{name}, milliseconds{'' if any_value else ': no answers'}", pad=20)
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.0, ncols=4, fontsize=9, handlelength=1.6)


def _series(values: Sequence[float | None]) -> Any:
    return np.array([np.nan if value is None else value for value in values])


def _error_panel(axes: Any, seconds: Any, samples: Sequence[TimelinePoint]) -> None:
    width = float(np.median(np.diff(seconds))) if len(samples) > 1 else 1.0
    stable = np.array([sample.stable.errors for sample in samples])
    canary = np.array([sample.candidate.errors for sample in samples])
    axes.bar(seconds, stable, width=width, color=colour("baseline"), label="stable")
    axes.bar(seconds, canary, width=width, bottom=stable, color=colour("bad"), label="candidate")
    axes.set_ylim(0.0, max(1.0, 1.25 * float((stable + canary).max(initial=0.0))))
    axes.yaxis.get_major_locator().set_params(integer=True, nbins=3)
    if stable.any() or canary.any():
        axes.set_title("errors per interval", pad=20)
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.0, ncols=2, fontsize=9)
    else:
        axes.set_title("errors per interval: none")


_STYLES = ("bad", "candidate", "baseline", "unsure")
"""Colour of each metric, in the order of the analysis: failed answers come first."""

_LEAST = 1e-3
"""Evidence for the null hypothesis, which decides nothing, is drawn no lower."""

_MOST = 1e6
_WHOLE_FROM = 100.0


def plot_evidence(study: CanaryStudy, evidence: EvidenceSeries) -> Plot:
    """E-values of regressions and of a wrong split, over the canary's time."""
    seconds = np.array([look.at for look in evidence.looks])

    def draw(figure: Any) -> None:
        regressed, split = panels = figure.subplots(2, 1, sharex=True, height_ratios=(1.5, 0.8))
        values = np.array([look.regressed for look in evidence.looks])
        _series_panel(regressed, seconds, values, evidence.metrics)
        _threshold(regressed, evidence.regressed_at, "worse")
        columns = 2 if figure.get_figwidth() < NARROW_INCHES else 4
        rows = math.ceil(len(evidence.metrics) / columns)
        regressed.set_title("worse than tolerated: e-values", pad=8.0 + 14.0 * rows)
        regressed.legend(
            loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.0, ncols=columns, fontsize=9, handlelength=1.8
        )
        _series_panel(split, seconds, np.array([[look.split] for look in evidence.looks]), ["split"])
        _threshold(split, evidence.split_wrong_at, "wrong")
        split.set_title("traffic split otherwise than intended: e-value of the step")
        for axes in panels:
            for mark in study.marks:
                axes.axvline(mark.at_seconds, color=colour("muted"), linewidth=0.9, linestyle=(0, (2, 2)))
        first, last = span(study)
        split.set_xlim(first - 0.01 * (last - first), last + 0.01 * (last - first))
        split.set_xlabel("seconds into the canary")

    return draw_plot(
        f"evidence-{study.target}",
        f"Evidence over time, {study.target}",
        evidence_in_words(evidence),
        draw,
        size=(11.4, 5.0),
        narrow_size=(6.4, 5.6),
    )


def evidence_in_words(evidence: EvidenceSeries) -> str:
    """The strongest evidence of a regression beside its threshold."""
    looks = evidence.looks
    highest = [max(look.regressed[number] for look in looks) for number in range(len(evidence.metrics))]
    nearest = highest.index(max(highest))
    reached = "reached" if highest[nearest] >= evidence.regressed_at else "did not reach"
    return (
        f"The strongest evidence against the candidate, {evidence.metrics[nearest]}, {reached} its threshold: "
        f"e-value {e_value(highest[nearest])}, threshold {e_value(evidence.regressed_at)}. An e-value "
        f"is what a bet against a hypothesis has made of 1: if the hypothesis holds, it ever reaches a threshold of x "
        f"with a chance of at most 1 / x."
    )


def e_value(value: float) -> str:
    """An e-value for people: three digits, or all before the point."""
    if value >= LARGEST:
        return f"over {LARGEST:.0e}"
    return f"{value:,.0f}" if value >= _WHOLE_FROM else f"{value:.3g}"


def _series_panel(axes: Any, seconds: Any, values: Any, names: Sequence[str]) -> None:
    drawn = np.clip(values, _LEAST, _MOST)
    for number, name in enumerate(names):
        role = _STYLES[number] if len(names) > 1 else "ink"
        axes.plot(seconds, drawn[:, number], color=colour(role), linewidth=1.8, label=name)
    axes.set_yscale("log")
    lowest = 10.0 ** math.floor(math.log10(min(0.1, float(drawn.min()))))
    axes.set_ylim(lowest, 10.0 ** (math.log10(max(1e3, float(drawn.max()))) + 0.9))
    axes.yaxis.get_major_locator().set_params(numticks=6)
    axes.set_yticks([tick for tick in axes.get_yticks() if lowest <= tick <= axes.get_ylim()[1]])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}" if value < 1e4 else f"1e{math.log10(value):.0f}")  # noqa: PLR2004 - five digits
    axes.yaxis.set_minor_formatter(lambda _value, _: "")


def _threshold(axes: Any, value: float, what: str) -> None:
    axes.axhline(value, color=colour("ink"), linewidth=1.1, linestyle=(0, (4, 2)))
    axes.annotate(
        f"{what} at {e_value(value)}", (0.0, value), xycoords=axes.get_yaxis_transform(), textcoords="offset points",
        xytext=(3, 2), ha="left", va="bottom", fontsize=9, color=colour("ink"),
    )  # fmt: skip
