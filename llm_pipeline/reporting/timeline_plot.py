"""The plot of where the time went: a bar a stage, waits cut short, failed stages marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_pipeline.base.quantities import duration
from llm_pipeline.release.contract import StageResult
from llm_pipeline.reporting.failures import flow_order
from llm_pipeline.reporting.figure import VERDICT_ROLE, Plot, colour, draw_plot, label_bar
from llm_pipeline.reporting.model import FailedStage, stage_label

_ROW_INCHES = 0.27
_LONGEST_IDLE_SHARE = 0.06
_MOST_TICKS = 6
_TICK_STEPS = (1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14400.0)


def plot_timeline(stages: Sequence[StageResult], failures: Sequence[FailedStage] = ()) -> Plot:
    """A bar a stage over working time; long waits between stages are cut, reused results are hatched.

    When a stage failed is not recorded: its cross stands where the stage before it in the flow ended.
    """
    clock = _working_clock(stages)
    total = max((clock[run.timings.started_at.timestamp()] + run.timings.total_seconds for run in stages), default=1.0)
    rows = _rows(stages, failures)
    height = 0.9 + _ROW_INCHES * len(rows)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        end = 0.0
        for row, run in enumerate(rows):
            if isinstance(run, FailedStage):
                _failed_mark(axes, row, run, end, total)
            else:
                start = clock[run.timings.started_at.timestamp()]
                end = start + run.timings.total_seconds
                _timeline_bar(axes, row, run, start, total)
        axes.set_yticks(range(len(rows)), [stage_label(run) for run in rows])
        for tick, run in zip(axes.get_yticklabels(), rows, strict=True):
            tick.set_color(colour("bad" if isinstance(run, FailedStage) else "muted"))
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(0.0, 1.17 * total)
        axes.grid(visible=False, axis="y")
        ticks = [_tick_step(total) * number for number in range(_MOST_TICKS + 1)]
        axes.set_xticks([t for t in ticks if t <= total], [duration(t) if t else "0" for t in ticks if t <= total])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("working time, waits cut short")

    reused = sum(run.reused for run in stages)
    failed = f"; failed: {'; '.join(map(stage_label, failures))}" if failures else ""
    return draw_plot(
        "timeline",
        "Where the time went",
        f"{len(stages)} stages, {reused} of them reused, {duration(total)} of working time{failed}.",
        draw,
        size=(11.4, height),
        narrow_size=(6.4, height),
    )


def _rows(stages: Sequence[StageResult], failures: Sequence[FailedStage]) -> list[StageResult | FailedStage]:
    """The stages in time, each failed one behind the last stage that comes before it in the flow."""
    rows: list[StageResult | FailedStage] = list(stages)
    for failed in failures:
        before = [i for i, row in enumerate(rows) if flow_order(row.stage) <= flow_order(failed.stage)]
        rows.insert(before[-1] + 1 if before else 0, failed)
    return rows


def _failed_mark(axes: Any, row: int, run: FailedStage, moment: float, total: float) -> None:
    axes.plot([moment], [row], marker="x", markersize=7, markeredgewidth=2.2, color=colour("bad"), clip_on=False)
    late = moment > total / 2
    axes.annotate(
        f"failed: {run.error.type}", (moment, row), xytext=(-9 if late else 9, 0), textcoords="offset points",
        ha="right" if late else "left", va="center", color=colour("bad"), weight="bold",
    )  # fmt: skip


def _timeline_bar(axes: Any, row: int, run: StageResult, start: float, total: float) -> None:
    width = max(run.timings.total_seconds, 0.004 * total)
    shown = colour(VERDICT_ROLE[run.judgement.verdict] if run.judgement else "candidate")
    if run.reused:
        axes.barh(row, width, left=start, height=0.6, facecolor="none", edgecolor=shown, hatch="////", linewidth=1.0)
    else:
        axes.barh(row, width, left=start, height=0.6, color=shown)
    label_bar(
        axes,
        start + width,
        row,
        f"{duration(run.timings.total_seconds)}{', reused' if run.reused else ''}",
        role="muted",
    )


def _tick_step(total: float) -> float:
    """A step in whole seconds, minutes or hours that gives about six ticks."""
    return next((step for step in _TICK_STEPS if total / step <= _MOST_TICKS), total / _MOST_TICKS)


def _working_clock(stages: Sequence[StageResult]) -> dict[float, float]:
    """Seconds of working time at which each stage started: waits (an approval, say) count for little."""
    spans = sorted((run.timings.started_at.timestamp(), run.timings.total_seconds) for run in stages)
    longest_idle = _LONGEST_IDLE_SHARE * sum(seconds for _, seconds in spans)
    clock: dict[float, float] = {}
    end, cut = (spans[0][0], spans[0][0]) if spans else (0.0, 0.0)
    for start, seconds in spans:
        cut += max(0.0, start - end - longest_idle)
        clock[start] = start - cut
        end = max(end, start + seconds)
    return clock
