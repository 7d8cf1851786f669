"""An evaluation as text for a task's log: the score of each task, and below it the comparison with the baseline."""

from __future__ import annotations

from llm_pipeline.accuracy.evaluation import Comparison, EvaluationSummary, PairedAccuracy
from llm_pipeline.base.text_table import underlined
from llm_pipeline.config.policy import AccuracyPolicy

_SCORES = ("task", "items", "score", "cut", "metric", "filter", "examples", "prompts")
_LOSSES = (
    "task", "items", "clusters", "baseline", "candidate", "loss, points", "bounds", "margin", "lost", "gained", "cut",
    "unpaired",
)  # fmt: skip


def format_evaluation(summary: EvaluationSummary, policy: AccuracyPolicy | None = None) -> str:
    """Items, score and how it came about, one line a task, with groups; starts with a line break.

    With a policy, the comparison with the baseline below it.
    """
    rows = []
    for task, own in summary.tasks.items():
        counts = (task, str(own.items), _percent(own.accuracy), str(own.cut))
        how = summary.metrics.get(task)
        prompts = "chat" if how and how.chat_template else "text"
        rows.append((*counts, *((how.metric, how.filter, str(how.few_shots), prompts) if how else "----")))
    lines = underlined(_SCORES, rows, right=range(1, len(_SCORES)))
    for name, tasks in summary.groups.items():
        lines.append(f"{name}: {_percent(summary.group_score(name))}, {len(tasks)} tasks judged as one")
    for read in summary.data:
        lines.append(f"data of {read.name}: {read.repository} at {read.commit[:12]}, {read.files} files")
    if policy and summary.comparison:
        lines += ["compared with the baseline:", *_comparison(summary.comparison, policy)]
    return "\n".join(["", *lines])


def _comparison(comparison: Comparison, policy: AccuracyPolicy) -> list[str]:
    """One line a task, tasks of a group below it, the pooled line last."""
    rows = []
    for task in comparison.tasks:
        rows.append(_row(task, f"{100 * policy.task_margin:.2f}"))
        rows += [_row(part, "-", indent="  ") for part in task.parts]
    rows.append(_row(comparison.pooled, f"{100 * policy.margin:.2f}"))
    note = (
        f"One-sided bounds, {100 * comparison.confidence:.4g} % confidence each, over all looks. Cut: answers of "
        "baseline and candidate that ended by length. Tasks below their group are information. Items of a cluster are "
        "the same question, or share a long text or the cluster field: they count as fewer."
    )
    return [*underlined(_LOSSES, rows, right=range(1, len(_LOSSES))), note]


def _row(part: PairedAccuracy, margin: str, indent: str = "") -> tuple[str, ...]:
    loss = part.loss
    return (
        f"{indent}{part.name}",
        str(part.pairs),
        "-" if part.clusters is None else str(part.clusters),
        _percent(part.baseline),
        _percent(part.candidate),
        f"{100 * loss.estimate:+.2f}" if loss else "-",
        f"{100 * loss.lower:+.2f} to {100 * loss.upper:+.2f}" if loss else "-",
        margin,
        str(part.lost),
        str(part.gained),
        f"{part.cut[0]} / {part.cut[1]}",
        str(part.unpaired),
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"
