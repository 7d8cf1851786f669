"""Plots of what each recipe lost in accuracy: with its bounds and margins (forest), and against its size (Pareto)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from llm_pipeline.accuracy.evaluation import PairedAccuracy
from llm_pipeline.base.quantities import points
from llm_pipeline.reporting.figure import VERDICT_ROLE, Plot, colour, draw_plot
from llm_pipeline.reporting.model import AccuracyStudy, Trial

_ROW_INCHES = 0.27
_STUDY_GAP = 0.6
_FARTHEST_MARGINS = 3.0
"""A broken recipe must not flatten the others: what lost more is an arrow at the edge, with its number."""


def plot_accuracy(studies: Sequence[AccuracyStudy]) -> Plot:
    """The loss of every candidate, pooled and by task, with one-sided bounds; the numbers stand beside the plot."""
    shown = [
        (study, [part for part in (study.comparison.pooled, *study.comparison.tasks) if part.loss]) for study in studies
    ]
    farthest = _FARTHEST_MARGINS * max(study.task_margin for study in studies)
    losses = [part.loss for _, parts in shown for part in parts if part.loss]
    right = 115 * max([farthest / _FARTHEST_MARGINS, *(loss.upper for loss in losses if loss.upper <= farthest)])
    left = 115 * max([0.0013 * right, *(-loss.lower for loss in losses if -loss.lower <= farthest)])

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.set_xlim(-left, right)
        axes.axvline(0.0, color=colour("muted"), linewidth=1.0)
        rows, names = [0.0], []
        for study, parts in shown:
            for index, part in enumerate(parts):
                _draw_loss(axes, rows[-1], part, study.task_margin if index else study.margin, is_pooled=not index)
                names.append(part.name if index else study.name)
                rows.append(rows[-1] + 1.0)
            rows[-1] += _STUDY_GAP
        axes.set_yticks(rows[:-1], names)
        headings = {study.name for study in studies}
        for tick, name in zip(axes.get_yticklabels(), names, strict=True):
            tick.set(
                color=colour("ink" if name in headings else "muted"), weight="bold" if name in headings else "normal"
            )
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(rows[-1] - _STUDY_GAP, -0.8)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("percentage points lost")

    return draw_plot(
        "accuracy",
        "Accuracy lost against the unquantized baseline",
        "; ".join(
            f"{study.name}: loss {points(loss.estimate)}, upper bound {points(loss.upper)} points on "
            f"{study.comparison.pooled.pairs:,} items"
            for study in studies
            if (loss := study.comparison.pooled.loss)
        ),
        draw,
        size=(11.4, 1.0 + _ROW_INCHES * (len(losses) + _STUDY_GAP * len(studies))),
    )


def _draw_loss(axes: Any, row: float, part: PairedAccuracy, margin: float, *, is_pooled: bool) -> None:
    if part.loss is None:
        return
    lower, middle, upper = (100 * value for value in (part.loss.lower, part.loss.estimate, part.loss.upper))
    shown = colour("good" if upper < 100 * margin else "bad" if lower > 100 * margin else "unsure")
    axes.plot([100 * margin] * 2, [row - 0.42, row + 0.42], color=colour("ink"), linewidth=2.0 if is_pooled else 1.2)
    axes.plot([lower, upper], [row, row], color=shown, linewidth=3.0 if is_pooled else 1.6)
    first, last = axes.get_xlim()
    shape = ">" if middle > last else "<" if middle < first else "D" if is_pooled else "o"
    axes.plot(
        [min(max(middle, first), last)], [row], marker=shape, markersize=7.0 if is_pooled else 4.5, color=shown,
        clip_on=False,
    )  # fmt: skip
    axes.annotate(
        f"{middle:+.2f}  ({lower:+.2f} to {upper:+.2f})", (1.0, row), xycoords=axes.get_yaxis_transform(),
        xytext=(12, 0), textcoords="offset points", va="center", fontsize=9,
        color=shown if is_pooled else colour("muted"), weight="bold" if is_pooled else "normal", annotation_clip=False,
    )  # fmt: skip


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
    farthest = _FARTHEST_MARGINS * limit
    bottom = 1.15 * max([2 * limit, *(point.upper for point in found if point.upper <= farthest)])
    top = 1.15 * min([-0.6 * limit, *(point.lower for point in found if -point.lower <= farthest)])

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.set_ylim(bottom, top)
        axes.set_xlim(0.0, 1.12 * max([100.0, *(point.size for point in found)]))
        axes.axhspan(limit, top, color=colour("band"), zorder=0)
        axes.axhline(limit, color=colour("ink"), linewidth=1.4)
        _note(axes, (0.0, limit), f"margin, {points(margin)}", (6, -4), va="top", color=colour("muted"))
        axes.plot([100.0], [0.0], marker="D", markersize=8, color=colour("baseline"), linestyle="none")
        _note(axes, (100.0, 0.0), "baseline", (0, 9), ha="center", va="bottom", color=colour("baseline"))
        for number, point in enumerate(found):
            shown, released = colour(VERDICT_ROLE[point.trial.verdict]), bool(point.trial.chosen_on)
            beyond = point.loss > bottom
            axes.plot([point.size] * 2, [point.lower, point.upper], color=shown, linewidth=3.0 if released else 1.8)
            axes.plot(
                [point.size], [min(point.loss, bottom)], marker="v" if beyond else "o", clip_on=False,
                markersize=9 if released else 6.5, color=shown,
            )  # fmt: skip
            name = f"{point.trial.name} ✓" if released else point.trial.name
            _note(
                axes, (point.size, min(point.loss, bottom)), f"{name}, {point.loss:+.1f}" if beyond else name,
                (8 if number % 2 else -8, 4), ha="left" if number % 2 else "right", va="bottom", color=shown,
                weight="bold" if released else "normal",
            )  # fmt: skip
        axes.set_xlabel("checkpoint size, % of the baseline")
        axes.set_ylabel("percentage points lost")

    return draw_plot(
        "pareto",
        "Accuracy lost against size, recipe by recipe",
        "; ".join(_point_in_words(point) for point in found),
        draw,
        size=(11.4, 4.2),
    )


def _note(axes: Any, at: tuple[float, float], text: str, offset: tuple[float, float], **style: Any) -> None:
    axes.annotate(text, at, xytext=offset, textcoords="offset points", fontsize=9.5, annotation_clip=False, **style)


def _point_in_words(point: Point) -> str:
    verdict = point.trial.verdict.value if point.trial.verdict else "no verdict"
    chosen = f", released on {', '.join(point.trial.chosen_on)}" if point.trial.chosen_on else ""
    bounds = f"{point.loss:+.2f} ({point.lower:+.2f} to {point.upper:+.2f}) points lost"
    return f"{point.trial.name}: {point.size:.0f} % of the baseline's size, {bounds}, {verdict}{chosen}"
