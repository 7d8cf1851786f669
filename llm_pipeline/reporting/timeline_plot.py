"""The plot of where the time went: a bar a stage, waits cut short, failed stages marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_pipeline.base.quantities import duration
from llm_pipeline.release.contract import StageResult
from llm_pipeline.reporting.figure import VERDICT_ROLE, Plot, colour, draw_plot
from llm_pipeline.reporting.headline import flow_order
from llm_pipeline.reporting.model import FailedStage, stage_label

_ROW_INCHES = 0.27
_LONGEST_IDLE_SHARE = 0.06
_TICK_STEPS = (1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14400.0)
_MOST_TICKS = 6


def plot_timeline(stages: Sequence[StageResult], failures: Sequence[FailedStage] = ()) -> Plot:
    """A bar a stage over working time; long waits between stages are cut, reused results are hatched.

    When a stage failed is not recorded: its cross stands where the stage before it in the flow ended.
    """
    rows: list[StageResult | FailedStage] = list(stages)
    for failed in failures:
        before = [i for i, row in enumerate(rows) if flow_order(row.stage) <= flow_order(failed.stage)]
        rows.insert(before[-1] + 1 if before else 0, failed)
    clock = _working_clock(stages)
    total = max((clock[run.timings.started_at.timestamp()] + run.timings.total_seconds for run in stages), default=1.0)
    step = next((step for step in _TICK_STEPS if total / step <= _MOST_TICKS), total / _MOST_TICKS)
    ticks = [step * number for number in range(int(total / step) + 1)]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        end = 0.0
        for row, run in enumerate(rows):
            if isinstance(run, FailedStage):
                role, text = "bad", f"failed: {run.error.type}"
                axes.plot(
                    [end], [row], marker="x", markersize=7, markeredgewidth=2.2, color=colour(role), clip_on=False
                )
            else:
                role, text = "muted", f"{duration(run.timings.total_seconds)}{', reused' if run.reused else ''}"
                start = clock[run.timings.started_at.timestamp()]
                end = start + run.timings.total_seconds
                shown = colour(VERDICT_ROLE[run.judgement.verdict] if run.judgement else "candidate")
                filled = {"facecolor": "none", "edgecolor": shown, "hatch": "////"} if run.reused else {"color": shown}
                width = max(run.timings.total_seconds, 0.003 * total)
                axes.barh(row, width, left=start, height=0.6, linewidth=1.0, **filled)
            axes.annotate(
                text, (end, row), xytext=(9, 0), textcoords="offset points", va="center", color=colour(role),
                annotation_clip=False,
            )  # fmt: skip
        axes.set_yticks(range(len(rows)), [stage_label(run) for run in rows])
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(0.0, 1.2 * total)
        axes.set_xticks(ticks, [duration(tick) if tick else "0" for tick in ticks])
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("working time, waits cut short")

    reused = sum(run.reused for run in stages)
    failed_too = f"; failed: {'; '.join(map(stage_label, failures))}" if failures else ""
    return draw_plot(
        "timeline",
        "Where the time went",
        f"{len(stages)} stages, {reused} of them reused, {duration(total)} of working time{failed_too}.",
        draw,
        size=(11.4, 0.9 + _ROW_INCHES * len(rows)),
    )


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
