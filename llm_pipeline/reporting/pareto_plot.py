"""The Pareto plot: what each recipe lost in accuracy, with its gate's bounds, against the size of its checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

from llm_pipeline.reporting.figure import VERDICT_ROLE, Plot, colour, draw_plot
from llm_pipeline.reporting.model import Trial
from llm_pipeline.reporting.quantities import points

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
        "; ".join(_in_words(point) for point in found),
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


def _in_words(point: Point) -> str:
    verdict = point.trial.verdict.value if point.trial.verdict else "no verdict"
    chosen = f", released on {', '.join(point.trial.chosen_on)}" if point.trial.chosen_on else ""
    bounds = f"{point.loss:+.2f} ({point.lower:+.2f} to {point.upper:+.2f}) points lost"
    return f"{point.trial.name}: {point.size:.0f} % of the baseline's size, {bounds}, {verdict}{chosen}"
