"""The evaluations of a release: the baseline is asked everything, a candidate and a server until the gate decides."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_pipeline.accuracy.evaluation import (
    EvaluationSummary,
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
_GREEDY_ITEMS = 256
"""Generative items that are asked once more, greedily, where answers are drawn: golden prompts are taken from them."""


@dataclass(frozen=True)
class Evaluated:
    """An evaluation, in memory and on disk.

    Attributes:
        directory: Where items and summary were written.
        items: What was asked.
        tool_seconds: Time inside the harness and the libraries below it, their imports included.
    """

    directory: Path
    items: tuple[ScoredItem, ...]
    summary: EvaluationSummary
    tool_seconds: float

    def metrics(self) -> dict[str, Metric]:
        """Accuracy by task, items, and seconds by phase."""
        summary = self.summary
        metrics: dict[str, Metric] = {f"accuracy_{task}": own.accuracy for task, own in summary.tasks.items()}
        metrics |= {"items": summary.asked, "items_planned": summary.planned}
        if summary.look is not None:
            metrics |= {"look": summary.look, "looks": summary.looks}
        return metrics | {f"seconds_{phase}": value for phase, value in summary.seconds.items()}


@dataclass
class _Run:
    """A scorer with what it asks, and the seconds of each phase so far."""

    inputs: Mapping[str, Path]
    evaluation: CheckpointEvaluation
    workdir: Path
    started: float = field(default_factory=time.monotonic)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def answers(self) -> Path:
        """lm-eval's cache of answers, which does not know whose they are: a work directory is of one stage key."""
        return self.workdir / "answers.jsonl"

    def timed(self, phase: str, work: Callable[[], Any]) -> Any:
        begun = time.monotonic()
        made = work()
        self.seconds[phase] = round(time.monotonic() - begun, 3)
        return made

    def written(self, scorer: Scorer, items: list[ScoredItem], harness: dict[str, str], **facts: Any) -> Evaluated:
        """The evaluation, on disk too."""
        from importlib import metadata

        loaded = scorer.loaded
        given = {"harness": harness, "groups": loaded.groups, "tags": loaded.tags, "metrics": scorer.metrics}
        versions = {name: metadata.version(name) for name in ("lm_eval", "torch", "transformers")}
        summary = summarise(items, self.seconds, versions).model_copy(update={**given, "data": loaded.data, **facts})
        directory = self.workdir / "evaluation"
        items = scorer.with_greedy_answers(items, _GREEDY_ITEMS)
        write_evaluation(directory, items, summary)
        return Evaluated(directory, tuple(items), summary, time.monotonic() - self.started)


def _checkpoint_scorer(
    run: _Run, dtype: str, baseline: EvaluationSummary | None = None
) -> tuple[Scorer, Any, dict[str, str]]:
    """The scorer of a checkpoint, its tokenizer, and what of the checkpoint belongs to the harness."""

    def imported() -> None:
        with sparing():  # a fifth of that time is the collector's, and finds nothing
            import llm_pipeline.accuracy.scorer
            import llm_pipeline.artifacts.checkpoint_loading  # noqa: F401
        spare_tool()

    run.timed("import", imported)
    from llm_pipeline.accuracy import scorer as module
    from llm_pipeline.accuracy.tasks import load_tasks
    from llm_pipeline.artifacts.checkpoint_loading import load_tokenizer

    module.use_processors()
    checkpoint, evaluation = run.inputs["checkpoint"], run.evaluation
    name = module.scorer_here(baseline.harness["scorer"] if baseline else evaluation.scorer)
    loaded = run.timed(
        "tasks",
        lambda: load_tasks(run.inputs.get("tasks"), run.inputs.get("eval_data"), evaluation, evaluation.tasks),
    )
    tokenizer = load_tokenizer(checkpoint)
    model = run.timed("load", lambda: module.checkpoint_model(name, checkpoint, tokenizer, evaluation, dtype))
    harness = {
        "scorer": name,
        "scorer arguments": json.dumps(evaluation.scorer_arguments, sort_keys=True),
        "tokenizer": module.tokenizer_digest(tokenizer),
        "begin token": "added" if module.begin_token(tokenizer) else "not added",
        "maximum length": str(model.longest),
    }
    metrics = baseline.metrics if baseline else None
    scorer = module.Scorer(model, tokenizer, loaded, evaluation, run.answers, metrics)
    log.info("checkpoint loaded", scorer=name, dtype=dtype, seconds=run.seconds["load"])
    return scorer, tokenizer, harness


def evaluate_baseline(
    inputs: Mapping[str, Path], evaluation: CheckpointEvaluation, dtype: str, workdir: Path
) -> Evaluated:
    """Score every item on the checkpoint.

    Args:
        inputs: `checkpoint`, `tasks` unless they are lm-eval's own, and `eval_data`, what they read.
        evaluation: What is asked.
        dtype: Precision of everything that is not quantized.
        workdir: What an earlier, killed attempt asked is taken up from here.

    Raises:
        ConfigError: A task is unknown, its data are unreadable, an item is too long or cannot be scored, or the model
            overflows in float16.
        IntegrityError: The checkpoint is damaged, or its numbers are not finite.
    """
    run = _Run(inputs, evaluation, workdir)
    scorer, tokenizer, harness = _checkpoint_scorer(run, dtype)
    from llm_pipeline.accuracy.scorer import NotFinite

    items: list[ScoredItem] = []
    try:
        run.timed("trial", scorer.try_tasks)
        asked = portions(scorer.clusters)
        run.timed("scoring", lambda: items.extend(item for portion in asked for item in scorer.ask(portion)))
    except NotFinite as error:
        if dtype == "float16" and _published_dtype(inputs["checkpoint"]) == "bfloat16":
            raise ConfigError(
                f"the model overflows in float16 ({error.message}): it was published in bfloat16, whose range is wider",
                where=error.where,
                hint="set baseline.dtype: bfloat16",
            ) from error
        raise
    evaluated = run.written(scorer, items, scorer.harness | harness)
    tokenizer.save_pretrained(evaluated.directory / _TOKENIZER)
    return evaluated


def _published_dtype(checkpoint: Path) -> str | None:
    """The precision that config.json states."""
    content = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    stated = [part.get(key) for part in (content, content.get("text_config", {})) for key in ("dtype", "torch_dtype")]
    return next((str(one) for one in stated if one), None)


def evaluate_candidate(
    inputs: Mapping[str, Path], evaluation: CheckpointEvaluation, policy: AccuracyPolicy, dtype: str, workdir: Path
) -> tuple[Evaluated, Judgement]:
    """Score a candidate portion by portion until the gate decides.

    Args:
        inputs: `checkpoint` and `baseline`, `tasks` unless they are lm-eval's own, and `eval_data`, what they read.
        evaluation: What is asked, as the baseline was.
        policy: When a loss is too much.
        dtype: Precision of everything that is not quantized.
        workdir: What an earlier, killed attempt asked is taken up from here.

    Raises:
        ConfigError: A task is unknown, its data are unreadable, or an item is too long.
        IntegrityError: The checkpoint is damaged, or the baseline was asked in another way.
    """
    run, before = _Run(inputs, evaluation, workdir), read_summary(inputs["baseline"])
    scorer, _, harness = _checkpoint_scorer(run, dtype, before)
    refuse_other_harness(before.harness, scorer.harness | harness)
    items, judgement, facts = _until_decided(run, scorer, policy, before.groups)
    return run.written(scorer, items, scorer.harness | harness, **facts), judgement


def evaluate_served(
    inputs: Mapping[str, Path], evaluation: Evaluation, policy: AccuracyPolicy, endpoint: Endpoint, workdir: Path
) -> tuple[Evaluated, Judgement]:
    """Score a served model on the served tasks, portion by portion until the gate decides; the rest is as above.

    Raises:
        Unsupported: A served task is not a generative one.
        IntegrityError: The baseline was asked in another way.
        Transient: The server does not answer.
    """
    run, before = _Run(inputs, evaluation, workdir), read_summary(inputs["baseline"])
    with sparing():
        from llm_pipeline.accuracy.scorer import Scorer, begin_token, template_arguments
        from llm_pipeline.accuracy.served_model import ServedModel, no_likelihood
        from llm_pipeline.accuracy.tasks import load_tasks
        from llm_pipeline.artifacts.checkpoint_loading import load_tokenizer

    loaded = load_tasks(inputs.get("tasks"), inputs.get("eval_data"), evaluation, evaluation.served_tasks)
    for name, task in loaded.tasks.items():
        if task.OUTPUT_TYPE != "generate_until":
            raise no_likelihood(name)
    tokenizer = load_tokenizer(inputs["baseline"] / _TOKENIZER)
    model = ServedModel(endpoint, tokenizer, begin_token(tokenizer), template_arguments(evaluation))
    scorer = Scorer(model, tokenizer, loaded, evaluation, run.answers, before.metrics)
    refuse_other_harness(before.harness, scorer.harness)
    items, judgement, facts = _until_decided(run, scorer, policy, before.groups)
    return run.written(scorer, items, scorer.harness, **facts), judgement


def _until_decided(
    run: _Run, scorer: Scorer, policy: AccuracyPolicy, groups: Mapping[str, tuple[str, ...]]
) -> tuple[list[ScoredItem], Judgement, dict[str, Any]]:
    """Items, judgement and its look; a candidate whose numbers are not finite fails at once."""
    from llm_pipeline.accuracy.scorer import NotFinite

    baseline, asked = read_items(run.inputs["baseline"]), portions(scorer.clusters)
    tasks = sorted(scorer.loaded.tasks)
    facts = {"planned": sum(map(len, asked)), "looks": len(asked)}
    items: list[ScoredItem] = []
    begun = time.monotonic()
    try:
        for look, portion in enumerate(asked, start=1):
            items += scorer.ask(portion)
            judgement = judge_look(baseline, items, look, len(asked), policy, tasks=tasks, groups=groups)
            run.seconds["scoring"] = round(time.monotonic() - begun, 3)
            if judgement is not None:
                log.info("the accuracy is decided", look=look, looks=len(asked), items=len(items))
                return items, judgement, facts | {"look": look}
    except NotFinite as error:
        fact = Evidence(
            name="log-likelihoods that are numbers",
            verdict=Verdict.NO_GO,
            samples=len(items),
            detail=f"{error.where}: {error.message}; {error.hint}",
        )
        return items, judge(f"The model is broken: {error.message} ({error.where}).", [fact]), facts
    raise AssertionError("the last look always decides")  # judge_look promises it
