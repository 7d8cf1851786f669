"""An evaluation, and a comparison of two, as text for a task's log."""

from __future__ import annotations

from llm_pipeline.accuracy.evaluation import EvaluationSummary
from llm_pipeline.accuracy.paired import Comparison, Interval, PairedAccuracy
from llm_pipeline.config.policy import AccuracyPolicy

_HEAD = ("task", "items", "baseline", "candidate", "loss, points", "bounds", "margin", "lost", "gained", "unpaired")


def format_evaluation(summary: EvaluationSummary) -> str:
    """Items and accuracy, one line a task, and the noise floor if there is one; starts with a line break."""
    lines = [f"{'task':<20}{'items':>8}{'accuracy':>12}", "-" * 40]
    for task, own in summary.tasks.items():
        accuracy = "-" if own.accuracy is None else f"{own.accuracy:.2%}"
        lines.append(f"{task:<20}{own.items:>8}{accuracy:>12}")
    if noise := summary.noise:
        lines.append(f"noise floor: {noise.flips} of {noise.items} items score differently at another batch size")
    return "\n" + "\n".join(lines)


def format_comparison(comparison: Comparison, policy: AccuracyPolicy) -> str:
    """An aligned table, one line a task, the pooled line last; starts with a line break."""
    rows = [_row(task, policy.task_margin) for task in comparison.tasks]
    rows.append(_row(comparison.pooled, policy.margin))
    widths = [max(len(row[column]) for row in [_HEAD, *rows]) for column in range(len(_HEAD))]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    lines = [_line(_HEAD, widths), rule, *(_line(row, widths) for row in rows[:-1]), rule, _line(rows[-1], widths)]
    note = f"One-sided bounds, {100 * comparison.confidence:.4g} % each at all looks together."
    return "\n" + "\n".join([*lines, note])


def _row(part: PairedAccuracy, margin: float) -> tuple[str, ...]:
    loss = part.loss
    return (
        part.name,
        str(part.pairs),
        _percent(part.baseline),
        _percent(part.candidate),
        f"{100 * loss.estimate:+.2f}" if loss else "-",
        f"{100 * loss.lower:+.2f} to {100 * loss.upper:+.2f}" if loss else "-",
        f"{100 * margin:.2f}",
        str(part.lost),
        str(part.gained),
        str(part.unpaired),
    )


def _percent(interval: Interval | None) -> str:
    return f"{100 * interval.estimate:.2f} %" if interval else "-"


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    first = cells[0].ljust(widths[0])
    rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
    return "  ".join([first, *rest]).rstrip()
