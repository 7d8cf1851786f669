"""Plots of what each recipe lost in accuracy: with its bounds and margins (forest), and against its size (Pareto)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

from llm_pipeline.accuracy.evaluation import Bounds, PairedAccuracy
from llm_pipeline.reporting.figure import VERDICT_ROLE, Plot, colour, draw_plot
from llm_pipeline.reporting.model import AccuracyStudy, Trial
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


def _is_bounded(loss: Bounds | None) -> bool:
    return loss is not None and math.isfinite(loss.lower) and math.isfinite(loss.upper)


def _in_words(pooled: PairedAccuracy) -> str:
    if pooled.loss is None:
        return "no data"
    return (
        f"loss {points(pooled.loss.estimate)}, upper bound {points(pooled.loss.upper)} points on {pooled.pairs} items"
    )


def _reach(studies: Sequence[AccuracyStudy], losses: Sequence[Bounds]) -> tuple[float, float]:
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


_CHARACTER_POINTS = 6.2
_LINE_POINTS = 13.0
_NEAREST_POINTS = 5.0
_POINTS_AN_INCH = 72.0
_AXES_SHARE = 0.86
_FARTHEST_MARGINS = 3.0
_DROP_SHARE = 0.09


class Point(NamedTuple):
    """One recipe: size in percent of the baseline, loss and bounds in percentage points."""

    trial: Trial
    size: float
    loss: float
    lower: float
    upper: float


def pareto_points(trials: Sequence[Trial]) -> list[Point]:
    """Recipes whose size and loss are known, smallest first."""
    found = []
    for trial in trials:
        loss = trial.pooled.loss if trial.pooled else None
        if loss is not None and trial.size_ratio is not None and trial.weights != "none":
            bounds = (100 * value for value in (loss.estimate, loss.lower, loss.upper))
            found.append(Point(trial, 100 * trial.size_ratio, *bounds))
    return sorted(found, key=lambda point: (point.size, point.loss))


def plot_pareto(trials: Sequence[Trial], margin: float) -> Plot:
    """Loss with its one-sided bounds against size; a loss far beyond the margin is an arrow with its number."""
    found = pareto_points(trials)
    limit = 100 * margin
    top = 1.15 * max([2 * limit, *(p.upper for p in found if p.upper <= _FARTHEST_MARGINS * limit)])
    bottom = 1.15 * min([-0.6 * limit, *(p.lower for p in found if -p.lower <= _FARTHEST_MARGINS * limit)])

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.set_ylim(top, bottom)
        axes.set_xlim(0.0, 1.12 * max([100.0, *(point.size for point in found)]))
        axes.axhspan(limit, bottom, color=colour("band"), zorder=0)
        axes.axhline(limit, color=colour("ink"), linewidth=1.4)
        _note(axes, (0.0, limit), f"margin, {points(margin)}", (6, -4), va="top", color=colour("muted"))
        _frontier(axes, found)
        axes.plot([100.0], [0.0], marker="D", markersize=8, color=colour("baseline"), linestyle="none")
        _note(axes, (100.0, 0.0), "baseline", (0, 9), ha="center", va="bottom", color=colour("baseline"))
        for point, (offset, side) in zip(found, _lanes(found, axes, figure.get_figwidth()), strict=True):
            _draw_point(axes, point, offset, side)
        axes.set_xlabel("checkpoint size, % of the baseline")
        axes.set_ylabel("percentage points lost")

    return draw_plot(
        "pareto",
        "Accuracy lost against size, recipe by recipe",
        "; ".join(_point_in_words(point) for point in found),
        draw,
        size=(11.4, 4.2),
        narrow_size=(6.4, 4.4),
    )


def _draw_point(axes: Any, point: Point, offset: float, side: int) -> None:
    bottom, top = axes.get_ylim()
    shown, released = colour(VERDICT_ROLE[point.trial.verdict]), bool(point.trial.chosen_on)
    drop = _DROP_SHARE * (bottom - top)
    beyond = point.loss > bottom
    start, end = max(min(point.lower, bottom - drop), top), min(point.upper, bottom)
    axes.plot([point.size] * 2, [start, end], color=shown, linewidth=3.0 if released else 1.8, solid_capstyle="butt")
    if point.upper > bottom:
        axes.plot([point.size], [bottom], marker="v", markersize=8, color=shown, clip_on=False, zorder=4)
    if not beyond:
        axes.plot([point.size], [point.loss], marker="o", markersize=9 if released else 6.5, color=shown, zorder=3)
    at = (point.size, start if side > 0 else end)
    _note(
        axes, at, _label(point, beyond=beyond), (0, side * offset), ha="center", va="bottom" if side > 0 else "top",
        color=shown, weight="bold" if released else "normal", annotation_clip=False,
    )  # fmt: skip


def _lanes(found: Sequence[Point], axes: Any, inches: float) -> Iterator[tuple[float, int]]:
    """Where each label stands: points away from its line, above (1) or below (-1); never over a neighbour's."""
    width = axes.get_xlim()[1] / (_AXES_SHARE * inches * _POINTS_AN_INCH)
    reached: dict[tuple[int, int], float] = {}
    baseline = (100.0 - width * 4 * _CHARACTER_POINTS, 100.0 + width * 4 * _CHARACTER_POINTS)
    for point in found:
        beyond = point.loss > axes.get_ylim()[0]
        half = 0.5 * width * _CHARACTER_POINTS * (len(_label(point, beyond=beyond)) + 1)
        left, right = point.size - half, point.size + half
        for line, side in product(range(len(found) + 1), (1,) if beyond else (1, -1)):
            over_baseline = side > 0 and not line and left < baseline[1] and right > baseline[0]
            if left > reached.get((line, side), -1e9) and not over_baseline:
                reached |= {(line, taken): right for taken in ((1, -1) if beyond else (side,))}
                yield _NEAREST_POINTS + line * _LINE_POINTS, side
                break


def _label(point: Point, *, beyond: bool) -> str:
    """The recipe's name, ticked when it is released; with its loss when the plot does not reach so far."""
    name = f"{point.trial.name} ✓" if point.trial.chosen_on else point.trial.name
    return f"{name}, {point.loss:+.1f}" if beyond else name


def _frontier(axes: Any, found: Sequence[Point]) -> None:
    """The recipes in sight that no smaller one beats, joined by a thin line that ends at the baseline."""
    best = axes.get_ylim()[0]
    corners = []
    for point in found:
        if point.loss < best:
            best = point.loss
            corners.append((point.size, point.loss))
    if best > 0.0:
        corners.append((100.0, 0.0))
    axes.plot(*zip(*corners, strict=True), color=colour("muted"), linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)


def _note(axes: Any, at: tuple[float, float], text: str, offset: tuple[float, float], **style: Any) -> None:
    axes.annotate(text, at, xytext=offset, textcoords="offset points", fontsize=9.5, **style)


def _point_in_words(point: Point) -> str:
    verdict = point.trial.verdict.value if point.trial.verdict else "no verdict"
    chosen = f", released on {', '.join(point.trial.chosen_on)}" if point.trial.chosen_on else ""
    bounds = f"{point.loss:+.2f} ({point.lower:+.2f} to {point.upper:+.2f}) points lost"
    return f"{point.trial.name}: {point.size:.0f} % of the baseline's size, {bounds}, {verdict}{chosen}"
