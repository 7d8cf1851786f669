"""The forest plot: what every candidate lost against the baseline, with its bounds and its margins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from llm_pipeline.accuracy.paired import Interval, PairedAccuracy
from llm_pipeline.reporting.figure import Plot, colour, draw_plot
from llm_pipeline.reporting.model import AccuracyStudy
from llm_pipeline.reporting.quantities import points

_ROW_INCHES = 0.27
_STUDY_GAP = 0.6
_STEM_SHARE = 0.08


def plot_accuracy(studies: Sequence[AccuracyStudy]) -> Plot:
    """The loss of every candidate, pooled and by task, with one-sided bounds; the numbers stand beside the plot.

    An interval that does not fit the axis ends in an arrow.
    """
    parts = [part for study in studies for part in _parts(study)]
    left, right = _reach(studies, [part.loss for part in parts if part.loss])
    height = 1.0 + _ROW_INCHES * (len(parts) + _STUDY_GAP * len(studies))

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.set_xlim(-left, right)
        labels: dict[float, tuple[str, bool]] = {}
        y = 0.0
        for study in studies:
            for index, part in enumerate(_parts(study)):
                margin = study.task_margin if index else study.margin
                _row(axes, y, part, 100 * margin, pooled=not index)
                labels[y] = (part.name, False) if index else (study.name, True)
                y += 1.0
            y += _STUDY_GAP
        _dress(axes, labels)

    return draw_plot(
        "accuracy",
        "Accuracy lost against the unquantized baseline",
        "; ".join(f"{study.name}: {_in_words(study.comparison.pooled)}" for study in studies),
        draw,
        size=(11.4, height),
        narrow_size=(6.4, height),
    )


def _parts(study: AccuracyStudy) -> list[PairedAccuracy]:
    """Pooled first, then the tasks; those without data are left out."""
    return [part for part in (study.comparison.pooled, *study.comparison.tasks) if _is_bounded(part.loss)]


def _is_bounded(loss: Interval | None) -> bool:
    return loss is not None and math.isfinite(loss.lower) and math.isfinite(loss.upper)


def _in_words(pooled: PairedAccuracy) -> str:
    if pooled.loss is None:
        return "no data"
    return (
        f"loss {points(pooled.loss.estimate)}, upper bound {points(pooled.loss.upper)} points on {pooled.pairs} items"
    )


def _reach(studies: Sequence[AccuracyStudy], losses: Sequence[Interval]) -> tuple[float, float]:
    """Both ends of the axis in points: all of the near results; a broken recipe must not flatten the others."""
    widest_margin = max((100 * study.task_margin for study in studies), default=1.0)
    farthest = 3 * widest_margin
    right = [100 * loss.upper for loss in losses if 100 * loss.upper <= farthest]
    left = [-100 * loss.lower for loss in losses if -100 * loss.lower <= farthest]
    reach = 1.15 * max([widest_margin, *right])
    return 1.15 * max([0.15 * reach, *left]), reach


def _row(axes: Any, y: float, part: PairedAccuracy, margin: float, *, pooled: bool) -> None:
    if part.loss is None:
        return
    lower, middle, upper = (100 * value for value in (part.loss.lower, part.loss.estimate, part.loss.upper))
    shown = colour("good" if upper < margin else "bad" if lower > margin else "unsure")
    axes.plot([margin, margin], [y - 0.42, y + 0.42], color=colour("ink"), linewidth=2.0 if pooled else 1.2, zorder=2)
    _interval(axes, y, (lower, upper), shown, 3.0 if pooled else 1.6)
    first, last = axes.get_xlim()
    if first <= middle <= last:
        shape, size = ("D", 7.0) if pooled else ("o", 4.5)
        axes.plot([middle], [y], marker=shape, markersize=size, color=shown, zorder=3)
    axes.annotate(
        f"{middle:+.2f}  ({lower:+.2f} to {upper:+.2f})", (1.0, y), xycoords=axes.get_yaxis_transform(),
        xytext=(12, 0), textcoords="offset points", va="center", fontsize=9, color=shown if pooled else colour("muted"),
        weight="bold" if pooled else "normal", annotation_clip=False,
    )  # fmt: skip


def _interval(axes: Any, y: float, bounds: tuple[float, float], shown: str, width: float) -> None:
    """The line from bound to bound; where it leaves the axis, an arrow head, and a stem if all of it is beyond."""
    (first, last), (lower, upper) = axes.get_xlim(), bounds
    stem = _STEM_SHARE * (last - first)
    start, end = max(min(lower, last - stem), first), min(max(upper, first + stem), last)
    axes.plot([start, end], [y, y], color=shown, linewidth=width, solid_capstyle="butt")
    for edge, shape, beyond in ((last, ">", upper > last), (first, "<", lower < first)):
        if beyond:
            axes.plot([edge], [y], marker=shape, markersize=5.5 + width, color=shown, clip_on=False, zorder=4)


def _dress(axes: Any, labels: dict[float, tuple[str, bool]]) -> None:
    axes.axvline(0.0, color=colour("muted"), linewidth=1.0)
    axes.set_yticks(list(labels), [text for text, _ in labels.values()])
    for tick, (_, is_heading) in zip(axes.get_yticklabels(), labels.values(), strict=True):
        tick.set(color=colour("ink" if is_heading else "muted"), weight="bold" if is_heading else "normal")
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(max(labels, default=0.0) + 0.8, -0.8)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("percentage points lost")
    axes.annotate(
        "lost (bounds)", (1.0, 1.0), xycoords="axes fraction", xytext=(12, 2), textcoords="offset points",
        fontsize=9, color=colour("muted"), va="bottom", annotation_clip=False,
    )  # fmt: skip
