"""The plot of a load test over time: requests, tokens and stalls of the windows that decided, second by second."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from llm_pipeline.loadtest.outcome import SecondOfTraffic, WindowSummary, deciding_windows
from llm_pipeline.reporting.figure import Plot, colour, draw_plot
from llm_pipeline.reporting.model import LoadStudy
from llm_pipeline.reporting.quantities import measure

_MOST_INTERVALS = 240
_DASHES = (0, (4, 2))


def plot_over_time(load: LoadStudy) -> Plot:
    """Requests, tokens and the longest stall by second, of the windows that decided and of the soak, one after another.

    A stall stands at the arrival of the request that had it.
    """
    windows = windows_over_time(load)
    starts = [0.0, *accumulate(float(len(window.seconds)) for window in windows)]
    moments = [second for window in windows for second in window.seconds]
    step = max(1, math.ceil(len(moments) / _MOST_INTERVALS))
    groups = [moments[first : first + step] for first in range(0, len(moments), step)]
    edges = np.minimum(np.arange(len(groups) + 1) * float(step), len(moments))
    worst = max((_stall(group) for group in groups), default=0.0)
    failed = sum(second.failed for second in moments)

    def draw(figure: Any) -> None:
        traffic, tokens, stalls = panels = figure.subplots(3, 1, sharex=True, height_ratios=(1.3, 1.0, 1.0))
        _traffic_panel(traffic, groups, edges)
        tokens.stairs(
            _rates([sum(s.output_tokens for s in group) for group in groups], edges), edges, baseline=None,
            color=colour("candidate"), linewidth=1.8,
        )  # fmt: skip
        tokens.set_title("output tokens per second")
        tokens.set_ylim(bottom=0.0)
        _stall_panel(stalls, load, groups, edges)
        for axes in panels:
            for start in starts[1:-1]:
                axes.axvline(start, color=colour("muted"), linewidth=0.9, linestyle=(0, (2, 2)))
        stalls.set_xlim(0.0, len(moments))
        stalls.set_xlabel("seconds, by scheduled arrival")

    phases = Counter(window.phase for window in windows)
    names = ", ".join(f"{phase} ({count} windows)" if count > 1 else phase for phase, count in phases.items())
    words = f"{names[:1].upper()}{names[1:]}"
    several = ", one after another" if len(windows) > 1 else ""
    return draw_plot(
        f"over-time-{load.target}",
        f"Throughput and stalls over time, {load.target}",
        f"{words}{several}; {failed:,} requests failed; the longest stall within an answer took "
        f"{measure(worst, 'ms')}.",
        draw,
        size=(11.4, 5.6),
        narrow_size=(6.4, 5.6),
    )


def windows_over_time(load: LoadStudy) -> tuple[WindowSummary, ...]:
    """The windows that decided, and the soak."""
    soaks = tuple(window for window in load.outcome.windows if window.phase == "soak" and not window.void)
    return (*deciding_windows(load.outcome), *soaks)


def _traffic_panel(axes: Any, groups: Sequence[Sequence[SecondOfTraffic]], edges: Any) -> None:
    arrived = _rates([sum(s.arrived for s in group) for group in groups], edges)
    good = _rates([sum(s.good for s in group) for group in groups], edges)
    failed = _rates([sum(s.failed for s in group) for group in groups], edges)
    axes.stairs(arrived, edges, baseline=None, color=colour("muted"), linewidth=1.3, label="arrived")
    axes.stairs(good, edges, baseline=None, color=colour("good"), linewidth=1.8, label="good")
    if failed.any():
        axes.stairs(failed, edges, color=colour("bad"), fill=True, label="failed")
    axes.set_ylim(bottom=0.0)
    axes.set_title("requests per second", pad=20)
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.0, ncols=3, fontsize=9)


def _stall_panel(axes: Any, load: LoadStudy, groups: Sequence[Sequence[SecondOfTraffic]], edges: Any) -> None:
    longest = np.array([_stall(group) for group in groups])
    limit = load.policy.service_level.longest_stall_milliseconds
    axes.stairs(longest, edges, color=colour("candidate"), fill=True, alpha=0.75)
    if limit is not None:
        over = np.where(longest > limit, longest, 0.0)
        axes.stairs(over, edges, color=colour("bad"), fill=True)
        axes.axhline(limit, color=colour("ink"), linewidth=1.2, linestyle=_DASHES)
    named = "" if limit is None else f"; limit {measure(limit, 'ms')}"
    axes.set_title(f"longest stall within an answer, milliseconds{named}")
    axes.set_ylim(bottom=0.0)


def _stall(group: Iterable[SecondOfTraffic]) -> float:
    return max((second.longest_stall_milliseconds or 0.0 for second in group), default=0.0)


def _rates(counts: Sequence[int], edges: Any) -> Any:
    return np.array(counts) / np.diff(edges)
