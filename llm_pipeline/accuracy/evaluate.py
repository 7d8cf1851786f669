"""The evaluations of a release: the baseline is asked everything, a candidate and a server until the gate decides."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_pipeline.accuracy.evaluation import (
    EvaluationSummary,
    NotFinite,
    read_summary,
    refuse_other_harness,
    summarise,
    write_evaluation,
)
from llm_pipeline.accuracy.gate import judge_look, portions
from llm_pipeline.artifacts.items import ScoredItem, read_items
from llm_pipeline.base.collector import spare_tool, sparing
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Metric
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.config.release import CheckpointEvaluation, Evaluation

if TYPE_CHECKING:
    from llm_pipeline.accuracy.scorer import Scorer

log = get_logger(__name__)

_TOKENIZER = "tokenizer"
"""Directory of a baseline's evaluation: the served model's prompts are written, and its answers counted, by it."""
_ANSWERS = "answers.jsonl"
"""In a work directory, which is of one stage key, for an answer does not say whose it is."""
_GREEDY_ITEMS = 256
"""Generative items that are asked once more, greedily, where answers are drawn: golden prompts are taken from them."""


@dataclass(frozen=True)
class Evaluated:
    """An evaluation, in memory and on disk.

    Attributes:
        directory: Where items and summary were written.
        items: What was asked.
    """

    directory: Path
    items: tuple[ScoredItem, ...]
    summary: EvaluationSummary

    def metrics(self) -> dict[str, Metric]:
        """Accuracy by task, items, and the seconds of scoring."""
        summary = self.summary
        metrics: dict[str, Metric] = {f"accuracy_{task}": own.accuracy for task, own in summary.tasks.items()}
        metrics |= {"items": summary.asked, "items_planned": summary.planned, "seconds_scoring": summary.seconds}
        return metrics if summary.look is None else metrics | {"look": summary.look, "looks": summary.looks}


def _written(scorer: Scorer, items: list[ScoredItem], workdir: Path, **facts: Any) -> Evaluated:
    """An evaluation, on disk too."""
    loaded, selected = scorer.loaded, scorer.loaded.selected
    given = {"groups": selected.groups, "tags": selected.tags, "data": loaded.data, "metrics": scorer.metrics}
    summary = summarise(items).model_copy(update={"harness": scorer.harness, **given, **facts})
    directory = workdir / "evaluation"
    items = scorer.with_greedy_answers(items, _GREEDY_ITEMS)
    write_evaluation(directory, items, summary)
    return Evaluated(directory, tuple(items), summary)


def _checkpoint_scorer(
    inputs: Mapping[str, Path],
    evaluation: CheckpointEvaluation,
    dtype: str,
    answers: Path,
    baseline: EvaluationSummary | None = None,
) -> tuple[Scorer, Any]:
    """The scorer of a checkpoint, and its tokenizer."""
    with sparing():  # a fifth of that time is the collector's, and finds nothing
        from llm_pipeline.accuracy import scorer as module
        from llm_pipeline.accuracy.tasks import load_tasks
        from llm_pipeline.artifacts.checkpoint_loading import load_tokenizer
    spare_tool()
    module.use_processors()
    checkpoint = inputs["checkpoint"]
    name = module.scorer_here(baseline.harness["scorer"] if baseline else evaluation.scorer)
    loaded = load_tasks(inputs.get("tasks"), inputs.get("eval_data"), evaluation, evaluation.tasks)
    tokenizer = load_tokenizer(checkpoint)
    begun = time.monotonic()
    model = module.checkpoint_model(name, checkpoint, tokenizer, evaluation, dtype)
    log.info("checkpoint loaded", scorer=name, dtype=dtype, seconds=round(time.monotonic() - begun, 3))
    harness = {
        "scorer": name,
        "scorer arguments": json.dumps(evaluation.scorer_arguments, sort_keys=True),
        "tokenizer": module.tokenizer_digest(tokenizer),
        "maximum length": str(model.longest),
    }
    metrics = baseline.metrics if baseline else None
    return module.Scorer(model, tokenizer, loaded, evaluation, answers, metrics, harness), tokenizer


def evaluate_baseline(
    inputs: Mapping[str, Path],
    evaluation: CheckpointEvaluation,
    dtype: str,
    workdir: Path,
    *,
    answers: Path | None = None,
) -> Evaluated:
    """Score every item on the checkpoint.

    Args:
        inputs: `checkpoint`, `tasks` unless they are lm-eval's own, and `eval_data`, what they read.
        evaluation: What is asked.
        dtype: Precision of everything that is not quantized.
        workdir: For what is made.
        answers: File of the answers that are known, of this checkpoint and evaluation alone; in `workdir` by default.

    Raises:
        ConfigError: A task is unknown, its data are unreadable, an item is too long or cannot be scored, or the model
            overflows in float16.
        IntegrityError: The checkpoint is damaged, or its numbers are not finite.
    """
    scorer, tokenizer = _checkpoint_scorer(inputs, evaluation, dtype, answers or workdir / _ANSWERS)
    begun = time.monotonic()
    try:
        scorer.try_tasks()
        items = [item for portion in portions(scorer.clusters) for item in scorer.ask(portion)]
    except NotFinite as error:
        if dtype != "float16":
            raise
        raise ConfigError(
            f"the model overflows in float16, whose range is less than that of bfloat16, or is broken: {error.message}",
            where=error.where,
            hint="set baseline.dtype: bfloat16",
        ) from error
    evaluated = _written(scorer, items, workdir, seconds=round(time.monotonic() - begun, 3))
    tokenizer.save_pretrained(evaluated.directory / _TOKENIZER)
    return evaluated


def evaluate_candidate(
    inputs: Mapping[str, Path],
    evaluation: CheckpointEvaluation,
    policy: AccuracyPolicy,
    dtype: str,
    workdir: Path,
    *,
    answers: Path | None = None,
) -> tuple[Evaluated, Judgement]:
    """Score a candidate portion by portion until the gate decides.

    Args:
        inputs: `checkpoint` and `baseline`, `tasks` unless they are lm-eval's own, and `eval_data`, what they read.
        evaluation: What is asked, as the baseline was.
        policy: When a loss is too much.
        dtype: Precision of everything that is not quantized.
        workdir: For what is made.
        answers: File of the answers that are known, of this checkpoint and evaluation alone; in `workdir` by default.

    Raises:
        ConfigError: A task is unknown, its data are unreadable, or an item is too long.
        IntegrityError: The checkpoint is damaged, or the baseline was asked in another way.
    """
    before = read_summary(inputs["baseline"])
    scorer, _ = _checkpoint_scorer(inputs, evaluation, dtype, answers or workdir / _ANSWERS, before)
    return _until_decided(scorer, inputs["baseline"], before, policy, workdir)


def evaluate_served(
    inputs: Mapping[str, Path], evaluation: Evaluation, policy: AccuracyPolicy, endpoint: Endpoint, workdir: Path
) -> tuple[Evaluated, Judgement]:
    """Score a served model on the served tasks, portion by portion until the gate decides; the rest is as above.

    Raises:
        Unsupported: A served task compares likelihoods, and the server tells none.
        IntegrityError: The baseline was asked in another way.
        Transient: The server does not answer.
    """
    before = read_summary(inputs["baseline"])
    with sparing():
        from llm_pipeline.accuracy.scorer import Scorer
        from llm_pipeline.accuracy.served_model import ServedModel
        from llm_pipeline.accuracy.tasks import load_tasks
        from llm_pipeline.artifacts.checkpoint_loading import load_tokenizer

    loaded = load_tasks(inputs.get("tasks"), inputs.get("eval_data"), evaluation, evaluation.served_tasks)
    tokenizer = load_tokenizer(inputs["baseline"] / _TOKENIZER)
    model = ServedModel(endpoint, tokenizer, evaluation)
    scorer = Scorer(model, tokenizer, loaded, evaluation, workdir / _ANSWERS, before.metrics)
    return _until_decided(scorer, inputs["baseline"], before, policy, workdir)


def _until_decided(
    scorer: Scorer, baseline: Path, before: EvaluationSummary, policy: AccuracyPolicy, workdir: Path
) -> tuple[Evaluated, Judgement]:
    """Ask portion by portion until the gate decides; a candidate whose numbers are not finite fails at once."""
    refuse_other_harness(before.harness, scorer.harness)
    theirs, asked, begun = read_items(baseline), portions(scorer.clusters), time.monotonic()
    facts: dict[str, Any] = {"planned": sum(map(len, asked)), "looks": len(asked)}
    items: list[ScoredItem] = []
    decided, look = None, 0
    try:
        while decided is None:  # the last look always decides
            items += scorer.ask(asked[look])
            look += 1
            decided = judge_look(
                theirs, items, look, len(asked), policy, tasks=scorer.loaded.tasks, groups=before.groups
            )
        judgement, facts["comparison"] = decided
        facts |= {"look": look, "seconds": round(time.monotonic() - begun, 3)}
    except NotFinite as error:
        detail = f"{error.where}: {error.message}; {error.hint}"
        fact = Evidence(
            name="log-likelihoods that are numbers", verdict=Verdict.NO_GO, samples=len(items), detail=detail
        )
        judgement = judge(f"The model is broken: {error.message} ({error.where}).", [fact])
    return _written(scorer, items, workdir, **facts), judgement
