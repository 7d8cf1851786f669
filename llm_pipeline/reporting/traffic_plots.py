"""Plots of traffic: the load test's latencies and rates, and the canary's split, latencies and errors over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from llm_pipeline.reporting.figure import Plot, colour, draw_plot
from llm_pipeline.reporting.model import ArmSample, CanaryMark, CanarySample, CanaryStudy, LoadStudy
from llm_pipeline.reporting.quantities import measure

_DISTRIBUTION_STEPS = 240
_RATE_BINS = 48
_MARK_DISTANCE = 0.08


def plot_latency(load: LoadStudy) -> Plot:
    """Distribution of first-token and end-to-end latency: the share of requests answered within a time."""
    firsts = [point.first_token_milliseconds for point in load.requests]
    ends = [None if point.failed else point.end_to_end_milliseconds for point in load.requests]
    first_words, end_words = _percentiles(firsts), _percentiles(ends)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for values, limit, role, name in (
            (firsts, load.first_token_limit, "candidate", "first token"),
            (ends, load.end_to_end_limit, "baseline", "end to end"),
        ):
            _distribution(axes, values, colour(role), name)
            axes.axvline(limit, color=colour(role), linewidth=1.2, linestyle=(0, (4, 2)))
            place = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom", "fontsize": 9}
            axes.text(limit, 1.01, f"limit {measure(limit, 'ms')}", color=colour(role), **place)
        axes.axhline(load.attainment, color=colour("muted"), linewidth=0.9)
        axes.text(
            0.005,
            load.attainment,
            f"{100 * load.attainment:g} %",
            transform=axes.get_yaxis_transform(),
            va="bottom",
            fontsize=9,
        )
        axes.set_xscale("log")
        axes.set_ylim(0.0, 1.04)
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
        axes.xaxis.get_major_locator().set_params(subs=(1.0, 2.0, 5.0))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(lambda _value, _: "")
        axes.set_xlabel("milliseconds from scheduled arrival")
        axes.legend(loc="center left", fontsize=9)

    return draw_plot(
        f"latency-{load.target}",
        f"Latency under load, {load.target}",
        f"First token {first_words}; end to end {end_words}; failed requests count as unanswered.",
        draw,
        size=(5.2, 3.3),
    )


def _percentiles(values: Sequence[float | None]) -> str:
    answered = np.array([value for value in values if value is not None])
    if not answered.size:
        return "no data"
    middle, slow = np.quantile(answered, (0.5, 0.95))
    return f"p50 {measure(float(middle), 'ms')}, p95 {measure(float(slow), 'ms')}"


def _distribution(axes: Any, values: Sequence[float | None], shown: str, name: str) -> None:
    """The empirical distribution; requests without an answer keep it below one."""
    answered = np.sort([value for value in values if value is not None])
    if not answered.size:
        return
    picks = np.unique(np.linspace(0, answered.size - 1, _DISTRIBUTION_STEPS).astype(int))
    axes.step(answered[picks], (picks + 1) / len(values), where="post", color=shown, linewidth=2.0, label=name)


def plot_rate(load: LoadStudy) -> Plot:
    """Arrivals, completions and failures a second over the load test."""
    arrivals = np.array([point.scheduled_seconds for point in load.requests])
    ends = np.array([_finish(point) for point in load.requests if not point.failed and point.end_to_end_milliseconds])
    failures = np.array([point.scheduled_seconds for point in load.requests if point.failed])
    horizon = float(max(arrivals.max(initial=1.0), ends.max(initial=1.0)))
    edges = np.linspace(0.0, horizon, min(_RATE_BINS, max(8, len(load.requests) // 12)) + 1)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for moments, role, name, width in ((arrivals, "muted", "arrived", 1.3), (ends, "candidate", "completed", 2.0)):
            axes.stairs(_rates(moments, edges), edges, baseline=None, color=colour(role), linewidth=width, label=name)
        if failures.size:
            axes.stairs(_rates(failures, edges), edges, color=colour("bad"), fill=True, label="failed")
        axes.axhline(load.rate_per_second, color=colour("ink"), linewidth=1.0, linestyle=(0, (4, 2)), label="planned")
        axes.set_ylim(bottom=0.0)
        axes.set_xlim(0.0, horizon)
        axes.set_xlabel("seconds into the load test")
        axes.set_ylabel("requests per second")
        axes.legend(loc="lower center", ncols=4, fontsize=9, handlelength=1.2, columnspacing=1.0)

    return draw_plot(
        f"rate-{load.target}",
        f"Rate under load, {load.target}",
        f"{arrivals.size} requests arrived, {ends.size} completed, {failures.size} failed.",
        draw,
        size=(5.2, 3.3),
    )


def _rates(moments: Any, edges: Any) -> Any:
    return np.histogram(moments, edges)[0] / (edges[1] - edges[0])


def _finish(point: Any) -> float:
    return float(point.scheduled_seconds + (point.end_to_end_milliseconds or 0.0) / 1000.0)


def plot_canary(study: CanaryStudy) -> Plot:
    """Traffic split, first-token latency of both arms and errors, over the canary's time."""
    samples = study.samples
    seconds = np.array([sample.seconds for sample in samples])

    def draw(figure: Any) -> None:
        split, latency, errors = figure.subplots(3, 1, sharex=True, height_ratios=(1.0, 1.7, 0.9))
        _split_panel(split, seconds, samples)
        _latency_panel(latency, seconds, samples)
        _error_panel(errors, seconds, samples)
        for axes in (split, latency, errors):
            for mark in study.marks:
                axes.axvline(mark.seconds, color=colour("muted"), linewidth=0.9, linestyle=(0, (2, 2)))
        for mark in _merged(study):
            split.text(mark.seconds, 104.0, mark.label, fontsize=9, va="bottom", color=colour("ink"))
        errors.set_xlabel("seconds into the canary")

    requests = sum(sample.canary.requests for sample in samples)
    failed = sum(sample.canary.errors for sample in samples)
    marks = ", ".join(f"{mark.label} at {mark.seconds:.0f} s" for mark in study.marks)
    return draw_plot(
        f"canary-{study.target}",
        f"Canary, {study.target}",
        f"The candidate answered {requests} requests, {failed} of them with an error. {marks}.",
        draw,
        size=(11.4, 5.8),
        narrow_size=(6.4, 5.8),
    )


def _merged(study: CanaryStudy) -> list[CanaryMark]:
    """Marks too close for two texts side by side share one."""
    span = max((sample.seconds for sample in study.samples), default=1.0)
    merged: list[CanaryMark] = []
    for mark in study.marks:
        if merged and mark.seconds - merged[-1].seconds < _MARK_DISTANCE * span:
            last = merged.pop()
            merged.append(CanaryMark(seconds=last.seconds, label=f"{last.label}, {mark.label}"))
        else:
            merged.append(mark)
    return merged


def _split_panel(axes: Any, seconds: Any, samples: Sequence[CanarySample]) -> None:
    percent = [sample.percent for sample in samples]
    axes.fill_between(seconds, percent, step="post", color=colour("candidate"), alpha=0.28, linewidth=0)
    axes.step(seconds, percent, where="post", color=colour("candidate"), linewidth=2.0)
    axes.set_ylim(0.0, 102.0)
    axes.set_yticks((0, 50, 100), ("0 %", "50 %", "100 %"))
    axes.set_title("traffic to the candidate", pad=20)


def _latency_panel(axes: Any, seconds: Any, samples: Sequence[CanarySample]) -> None:
    arms: tuple[tuple[str, str, Callable[[CanarySample], ArmSample]], ...] = (
        ("stable", "baseline", lambda sample: sample.stable),
        ("candidate", "candidate", lambda sample: sample.canary),
    )
    for name, role, arm in arms:
        middle = _series([arm(sample).first_token_p50 for sample in samples])
        slow = _series([arm(sample).first_token_p95 for sample in samples])
        axes.plot(seconds, middle, color=colour(role), linewidth=2.0, label=f"{name} p50")
        axes.plot(seconds, slow, color=colour(role), linewidth=1.2, linestyle=(0, (3, 1.5)), label=f"{name} p95")
    axes.set_ylim(bottom=0.0)
    axes.set_title("first token, milliseconds", pad=20)
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.0, ncols=4, fontsize=9, handlelength=1.6)


def _series(values: Sequence[float | None]) -> Any:
    return np.array([np.nan if value is None else value for value in values])


def _error_panel(axes: Any, seconds: Any, samples: Sequence[CanarySample]) -> None:
    width = float(np.median(np.diff(seconds))) if len(samples) > 1 else 1.0
    stable = np.array([sample.stable.errors for sample in samples])
    canary = np.array([sample.canary.errors for sample in samples])
    axes.bar(seconds, stable, width=width, color=colour("baseline"), label="stable")
    axes.bar(seconds, canary, width=width, bottom=stable, color=colour("bad"), label="candidate")
    axes.set_ylim(0.0, max(1.0, 1.25 * float((stable + canary).max(initial=0.0))))
    axes.yaxis.get_major_locator().set_params(integer=True, nbins=3)
    axes.set_title("errors per interval")
    if stable.any() or canary.any():
        axes.legend(loc="upper left", ncols=2, fontsize=9)
    else:
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", va="center", color=colour("muted"))
