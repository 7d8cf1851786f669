"""An evaluation of all items at once, for tests: a stage asks portions, saves them and stops early."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

from llm_pipeline.accuracy.chat_template import ChatTemplate
from llm_pipeline.accuracy.evaluation import EvaluationSummary, summarise
from llm_pipeline.accuracy.lm_eval_checkpoint import harness_versions, load_harness_model
from llm_pipeline.accuracy.questions import Questions
from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.config.release import Evaluation


class WholeEvaluation(NamedTuple):
    """An evaluation in memory."""

    items: tuple[ScoredItem, ...]
    summary: EvaluationSummary


def evaluate_checkpoint(
    checkpoint: Path, tasks: Path | None, evaluation: Evaluation, dtype: str, **options: Any
) -> WholeEvaluation:
    """Score every item of the evaluation's tasks; `options` are those of `load_harness_model`."""
    clock = [time.monotonic()]
    model = load_harness_model(checkpoint, evaluation, dtype, **options)
    clock.append(time.monotonic())
    questions = Questions.load(tasks, evaluation, evaluation.tasks, ChatTemplate.of(model.tokenizer))
    clock.append(time.monotonic())
    order = [(task, number) for task, clusters in questions.clusters.items() for number in range(len(clusters))]
    items = questions.ask(model, order)
    clock.append(time.monotonic())
    phases = ("load", "questions", "scoring")
    seconds = {name: round(clock[n + 1] - clock[n], 3) for n, name in enumerate(phases)}
    summary = summarise(items, seconds, harness_versions())
    harness = {**questions.identity, **model.identity}
    return WholeEvaluation(tuple(items), summary.model_copy(update={"harness": harness, "scoring": model.scoring}))
