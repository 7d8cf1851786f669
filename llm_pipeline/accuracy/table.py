"""An evaluation, and a comparison of two, as text for a task's log."""

from __future__ import annotations

from collections.abc import Sequence

from llm_pipeline.accuracy.evaluation import EvaluationSummary, TaskSummary
from llm_pipeline.accuracy.gate import Comparison, PairedAccuracy
from llm_pipeline.accuracy.task_metrics import TaskMetric
from llm_pipeline.base.text_table import aligned
from llm_pipeline.base.verdict import Evidence, Judgement
from llm_pipeline.config.policy import AccuracyPolicy

_TASK_HEAD = ("task", "items", "score", "cut", "metric", "filter", "examples", "prompts")
_BASELINE_HEAD = ("fact", "items", "measured", "bounds", "limit", "verdict")
_HEAD = (
    "task",
    "items",
    "clusters",
    "baseline",
    "candidate",
    "loss, points",
    "bounds",
    "margin",
    "lost",
    "gained",
    "cut",
    "unpaired",
)


def format_evaluation(summary: EvaluationSummary) -> str:
    """Items, score and how it came about, one line a task, with groups; starts with a line break."""
    rows = [_task_row(task, own, summary.metrics.get(task)) for task, own in summary.tasks.items()]
    head, *below = _aligned(_TASK_HEAD, rows)
    lines = [head, "-" * len(head), *below]
    lines += [
        f"{name}: {_percent(summary.group_score(name))}, {len(tasks)} tasks judged as one"
        for name, tasks in summary.groups.items()
    ]
    for read in summary.data:
        counts = ", ".join(f"{split} {count:,}" for split, count in read.documents.items())
        lines.append(f"data of {read.name}: {read.repository} at {read.commit[:12]}, {read.files} files, {counts}")
    return "\n" + "\n".join(lines)


def _task_row(task: str, own: TaskSummary, asked: TaskMetric | None) -> tuple[str, ...]:
    counts = (task, str(own.items), _percent(own.accuracy), str(own.cut))
    if asked is None:
        return (*counts, "-", "-", "-", "-")
    return (*counts, asked.metric, asked.filter, str(asked.few_shots), "chat" if asked.chat_template else "text")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def format_baseline(judgement: Judgement) -> str:
    """An aligned table of what a baseline was judged by, with a note on each fact; starts with a line break."""
    rows = [_fact_row(fact) for fact in judgement.evidence]
    head, *below = _aligned(_BASELINE_HEAD, rows)
    lines = [head, "-" * len(head), *below]
    return "\n" + "\n".join([*lines, *(f"{fact.name}: {fact.detail}" for fact in judgement.evidence)])


def format_comparison(comparison: Comparison, policy: AccuracyPolicy) -> str:
    """An aligned table, one line a task, tasks of a group below it, the pooled line last; starts with a line break."""
    rows = []
    for task in comparison.tasks:
        rows.append(_row(task, f"{100 * policy.task_margin:.2f}"))
        rows += [_row(part, "-", indent="  ") for part in task.parts]
    rows.append(_row(comparison.pooled, f"{100 * policy.margin:.2f}"))
    head, *tasks, pooled = _aligned(_HEAD, rows)
    rule = "-" * len(head)
    lines = [head, rule, *tasks, rule, pooled]
    note = (
        f"One-sided bounds, {100 * comparison.confidence:.4g} % confidence each, over all looks. Cut: answers of "
        "baseline and candidate that ended by length."
    )
    if any(task.parts for task in comparison.tasks):
        note += " Tasks below their group are information: the group is judged as one."
    if comparison.pooled.clusters is not None:
        note += (
            " Items of a cluster are the same question, or share a long text or the cluster field: they count as fewer."
        )
    return "\n" + "\n".join([*lines, note])


def _fact_row(fact: Evidence) -> tuple[str, ...]:
    both = fact.lower is not None and fact.upper is not None
    bounds = f"{_figure(fact.lower, fact)} to {_figure(fact.upper, fact)}" if both else "-"
    figures = _figure(fact.measured, fact), bounds, _figure(fact.limit, fact)
    return (fact.name, str(fact.samples), *figures, fact.verdict.value)


def _figure(value: float | None, fact: Evidence) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.2f} %" if fact.unit == "fraction" else f"{value:.4g}"


def _row(part: PairedAccuracy, margin: str, indent: str = "") -> tuple[str, ...]:
    loss = part.loss
    return (
        f"{indent}{part.name}",
        str(part.pairs),
        "-" if part.clusters is None else str(part.clusters),
        *("-" if score is None else f"{100 * score:.2f} %" for score in (part.baseline, part.candidate)),
        f"{100 * loss.estimate:+.2f}" if loss else "-",
        f"{100 * loss.lower:+.2f} to {100 * loss.upper:+.2f}" if loss else "-",
        margin,
        str(part.lost),
        str(part.gained),
        f"{part.cut[0]} / {part.cut[1]}",
        str(part.unpaired),
    )


def _aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return aligned([head, *rows], right=range(1, len(head)))
