"""Plots of what was decided and what it took: accuracy against the baseline, size and speed, the stages in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_pipeline.accuracy.paired import PairedAccuracy
from llm_pipeline.reporting.figure import Plot, colour, draw_plot, label_bar
from llm_pipeline.reporting.model import AccuracyStudy, StageRun, Variant
from llm_pipeline.reporting.quantities import duration, megabytes, points
from llm_pipeline.verdict import Verdict

VERDICT_ROLE = {
    Verdict.GO: "good",
    Verdict.NO_GO: "bad",
    Verdict.INCONCLUSIVE: "unsure",
    Verdict.ANOMALOUS: "unsure",
    None: "muted",
}

_ROW_INCHES = 0.27
_LONGEST_IDLE_SHARE = 0.06
_MOST_TICKS = 6
_TICK_STEPS = (1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14400.0)


def plot_accuracy(studies: Sequence[AccuracyStudy]) -> Plot:
    """A forest plot: the loss of every candidate, pooled and by task, with one-sided bounds and the margins."""
    rows = [
        (study, part) for study in studies for part in (study.comparison.pooled, *study.comparison.tasks) if part.loss
    ]
    reach = _forest_reach(studies, [part for _, part in rows])
    left = 1.15 * max([0.15 * reach, *(-100 * part.loss.lower for _, part in rows if part.loss)])
    height = 1.0 + _ROW_INCHES * (len(rows) + len(studies))

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        labels: dict[float, tuple[str, bool]] = {}
        y = 0.0
        for study in studies:
            parts = [part for part in (study.comparison.pooled, *study.comparison.tasks) if part.loss]
            for index, part in enumerate(parts):
                margin = study.task_margin if index else study.margin
                _forest_row(axes, y, part, 100 * margin, reach, pooled=not index)
                labels[y] = (part.name, False) if index else (study.name, True)
                y += 1.0
            y += 0.6
        _forest_axes(axes, labels, left, reach)

    return draw_plot(
        "accuracy",
        "Accuracy lost against the unquantized baseline",
        "; ".join(f"{study.name}: {_loss_in_words(study.comparison.pooled)}" for study in studies),
        draw,
        size=(11.4, height),
        narrow_size=(6.4, height),
    )


def _loss_in_words(pooled: PairedAccuracy) -> str:
    if pooled.loss is None:
        return "no data"
    return (
        f"loss {points(pooled.loss.estimate)}, upper bound {points(pooled.loss.upper)} points on {pooled.pairs} items"
    )


def _forest_reach(studies: Sequence[AccuracyStudy], parts: Sequence[PairedAccuracy]) -> float:
    """Half-width of the axis in points: all of the near results; a broken recipe must not flatten the others."""
    widest_margin = max((100 * study.task_margin for study in studies), default=1.0)
    bounds = [abs(100 * edge) for part in parts if part.loss for edge in (part.loss.lower, part.loss.upper)]
    near = [bound for bound in bounds if bound <= 3 * widest_margin]
    return 1.15 * max([widest_margin, *near])


def _forest_row(axes: Any, y: float, part: PairedAccuracy, margin: float, reach: float, *, pooled: bool) -> None:
    loss = part.loss
    if loss is None:
        return
    lower, middle, upper = (100 * value for value in (loss.lower, loss.estimate, loss.upper))
    role = "good" if upper < margin else "bad" if lower > margin else "unsure"
    axes.plot([margin, margin], [y - 0.42, y + 0.42], color=colour("ink"), linewidth=2.0 if pooled else 1.2, zorder=2)
    if lower > reach:
        axes.annotate(
            "", (reach, y), (0.86 * reach, y), arrowprops={"arrowstyle": "->", "color": colour(role), "lw": 2}
        )
        axes.text(0.84 * reach, y, f"{middle:+.1f}", ha="right", va="center", color=colour(role), weight="bold")
        return
    axes.plot([max(lower, -reach), min(upper, reach)], [y, y], color=colour(role), linewidth=3.0 if pooled else 1.6)
    shape, size = ("D", 7.0) if pooled else ("o", 4.5)
    axes.plot([middle], [y], marker=shape, markersize=size, color=colour(role), zorder=3)


def _forest_axes(axes: Any, labels: dict[float, tuple[str, bool]], left: float, reach: float) -> None:
    axes.axvline(0.0, color=colour("muted"), linewidth=1.0)
    axes.set_yticks(list(labels), [text for text, _ in labels.values()])
    for tick, (_, is_heading) in zip(axes.get_yticklabels(), labels.values(), strict=True):
        tick.set(color=colour("ink" if is_heading else "muted"), weight="bold" if is_heading else "normal")
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(max(labels, default=0.0) + 0.8, -0.8)
    axes.set_xlim(-left, reach)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("percentage points lost")


def plot_variants(variants: Sequence[Variant]) -> Plot:
    """Bars of the size of every variant, and of its speed where an engine was built."""
    engines = sorted({engine.target for variant in variants for engine in variant.engines})
    baseline = next((variant.bytes for variant in variants if variant.is_baseline), 0)
    height = 0.9 + 0.36 * len(variants)

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, 1 + len(engines), sharey=True, squeeze=False)[0]
        _size_panel(panels[0], variants, baseline)
        for panel, engine in zip(panels[1:], engines, strict=True):
            _speed_panel(panel, variants, engine)

    return draw_plot(
        "variants",
        "Size and speed of every variant",
        _variants_in_words(variants, baseline),
        draw,
        size=(11.4, height),
        narrow_size=(6.4, height),
    )


def _variants_in_words(variants: Sequence[Variant], baseline: int) -> str:
    chosen = next((variant for variant in variants if variant.chosen), None)
    if chosen is None:
        return f"{len(variants)} variants; none is released."
    share = f", {100 * chosen.bytes / baseline:.0f} % of the baseline" if baseline else ""
    return f"{len(variants)} variants; {chosen.name} is released with {megabytes(chosen.bytes)}{share}."


def _size_panel(axes: Any, variants: Sequence[Variant], baseline: int) -> None:
    rows = range(len(variants))
    colours = [colour("baseline" if v.is_baseline else VERDICT_ROLE[v.verdict]) for v in variants]
    axes.barh(rows, [variant.bytes / 1e6 for variant in variants], color=colours, height=0.62)
    for row, variant in enumerate(variants):
        share = f" · {100 * variant.bytes / baseline:.0f} %" if baseline and not variant.is_baseline else ""
        label_bar(axes, variant.bytes / 1e6, row, megabytes(variant.bytes) + share, bold=variant.chosen)
    axes.set_yticks(rows, [f"{variant.name} ✓" if variant.chosen else variant.name for variant in variants])
    axes.invert_yaxis()
    axes.margins(x=0.42)
    _bars_only(axes, "checkpoint size")


def _speed_panel(axes: Any, variants: Sequence[Variant], engine: str) -> None:
    speeds = [_speed(variant, engine) for variant in variants]
    axes.barh(range(len(variants)), speeds, color=colour("candidate"), height=0.62)
    for row, speed in enumerate(speeds):
        label_bar(axes, speed, row, f"{speed:,.0f}" if speed else "not built", role="ink" if speed else "muted")
    axes.margins(x=0.3)
    _bars_only(axes, f"output tokens/s, {engine}")


def _speed(variant: Variant, target: str) -> float:
    return next((engine.tokens_per_second for engine in variant.engines if engine.target == target), 0.0)


def _bars_only(axes: Any, title: str) -> None:
    axes.set_title(title)
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def plot_timeline(stages: Sequence[StageRun]) -> Plot:
    """A bar a stage over working time; long waits between stages are cut, reused results are hatched."""
    clock = _working_clock(stages)
    total = max((clock[run.started_at.timestamp()] + run.total_seconds for run in stages), default=1.0)
    height = 0.9 + _ROW_INCHES * len(stages)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for row, run in enumerate(stages):
            _timeline_bar(axes, row, run, clock[run.started_at.timestamp()], total)
        axes.set_yticks(range(len(stages)), [run.label for run in stages])
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(stages) - 0.4, -0.6)
        axes.set_xlim(0.0, 1.17 * total)
        axes.grid(visible=False, axis="y")
        ticks = [_tick_step(total) * number for number in range(_MOST_TICKS + 1)]
        axes.set_xticks([t for t in ticks if t <= total], [duration(t) if t else "0" for t in ticks if t <= total])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("working time, waits cut short")

    reused = sum(run.reused for run in stages)
    return draw_plot(
        "timeline",
        "Where the time went",
        f"{len(stages)} stages, {reused} of them reused, {duration(total)} of working time",
        draw,
        size=(11.4, height),
        narrow_size=(6.4, height),
    )


def _timeline_bar(axes: Any, row: int, run: StageRun, start: float, total: float) -> None:
    width = max(run.total_seconds, 0.004 * total)
    shown = colour(VERDICT_ROLE[run.verdict] if run.verdict else "candidate")
    if run.reused:
        axes.barh(row, width, left=start, height=0.6, facecolor="none", edgecolor=shown, hatch="////", linewidth=1.0)
    else:
        axes.barh(row, width, left=start, height=0.6, color=shown)
    label_bar(
        axes, start + width, row, f"{duration(run.total_seconds)}{', reused' if run.reused else ''}", role="muted"
    )


def _tick_step(total: float) -> float:
    """A step in whole seconds, minutes or hours that gives about six ticks."""
    return next((step for step in _TICK_STEPS if total / step <= _MOST_TICKS), total / _MOST_TICKS)


def _working_clock(stages: Sequence[StageRun]) -> dict[float, float]:
    """Seconds of working time at which each stage started: waits (an approval, say) count for little."""
    spans = sorted((run.started_at.timestamp(), run.total_seconds) for run in stages)
    longest_idle = _LONGEST_IDLE_SHARE * sum(seconds for _, seconds in spans)
    clock: dict[float, float] = {}
    end, cut = (spans[0][0], spans[0][0]) if spans else (0.0, 0.0)
    for start, seconds in spans:
        cut += max(0.0, start - end - longest_idle)
        clock[start] = start - cut
        end = max(end, start + seconds)
    return clock
