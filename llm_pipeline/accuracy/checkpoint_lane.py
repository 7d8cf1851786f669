"""The checkpoint lane of the accuracy gates: what the baseline and the accuracy stage do alike."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llm_pipeline.accuracy.evaluation import EvaluationSummary, write_evaluation
from llm_pipeline.accuracy.items import ScoredItem
from llm_pipeline.config.release import Evaluation
from llm_pipeline.stages.contract import Metric


@dataclass(frozen=True)
class LaneEvaluation:
    """An evaluation, in memory and on disk.

    Attributes:
        directory: Where items and summary were written.
        tool_seconds: Time inside the harness and the libraries below it, their imports included.
    """

    directory: Path
    items: tuple[ScoredItem, ...]
    summary: EvaluationSummary
    tool_seconds: float

    def metrics(self) -> dict[str, Metric]:
        """Accuracy by task, items, and seconds by phase."""
        accuracy: dict[str, Metric] = {f"accuracy_{task}": own.accuracy for task, own in self.summary.tasks.items()}
        seconds = {f"seconds_{phase}": value for phase, value in self.summary.seconds.items()}
        return {**accuracy, "items": self.summary.items, **seconds}


def evaluate_lane(inputs: Mapping[str, Path], evaluation: Evaluation, dtype: str, workdir: Path) -> LaneEvaluation:
    """Evaluate the input `checkpoint` on the tasks of the input `tasks` (lm-eval's own without it).

    Raises:
        PipelineError: As `evaluate_checkpoint`.
    """
    started = time.monotonic()
    from llm_pipeline.accuracy.lm_eval_checkpoint import evaluate_checkpoint, use_one_cpu_thread

    use_one_cpu_thread()
    imported = time.monotonic()
    evaluated = evaluate_checkpoint(inputs["checkpoint"], inputs.get("tasks"), evaluation, dtype)
    seconds = {"import": round(imported - started, 3), **evaluated.summary.seconds}
    summary = evaluated.summary.model_copy(update={"seconds": seconds})
    tool_seconds = time.monotonic() - started
    directory = workdir / "evaluation"
    write_evaluation(directory, evaluated.items, summary)
    return LaneEvaluation(directory, evaluated.items, summary, tool_seconds)


def summary_table(summary: EvaluationSummary) -> str:
    """Tasks, items, accuracies and times, one line a task; starts with a line break."""
    lines = [f"{'task':<20}{'items':>8}{'accuracy':>12}{'seconds':>10}", "-" * 50]
    for task, own in summary.tasks.items():
        accuracy = "-" if own.accuracy is None else f"{own.accuracy:.2%}"
        seconds = summary.seconds.get(task)
        lines.append(f"{task:<20}{own.items:>8}{accuracy:>12}{'-' if seconds is None else f'{seconds:.1f}':>10}")
    return "\n" + "\n".join(lines)
