"""The checkpoint lane of the accuracy gates: the baseline is asked everything, a candidate until the gate decides."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llm_pipeline.accuracy.chat_template import ChatTemplate
from llm_pipeline.accuracy.evaluation import (
    EvaluationSummary,
    read_summary,
    refuse_other_harness,
    summarise,
    write_evaluation,
)
from llm_pipeline.accuracy.gate import portions
from llm_pipeline.accuracy.item_runner import ItemRunner, SavedItems
from llm_pipeline.artifacts.items import ScoredItem, read_items
from llm_pipeline.base.collector import spare_tool, sparing
from llm_pipeline.base.digest import sha256_json
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.progress import Progress
from llm_pipeline.base.records import Metric
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.config.release import CheckpointEvaluation

if TYPE_CHECKING:
    from llm_pipeline.accuracy.lm_eval_checkpoint import HarnessModel
    from llm_pipeline.accuracy.questions import Questions


_TRIED_DOCUMENTS = 2
_REFERENCE_ITEMS = 64
"""Items on whose texts the candidate's distribution of tokens is compared with the baseline's."""


@dataclass(frozen=True)
class LaneEvaluation:
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
        """Accuracy by task, items, what is known of divergence, and seconds by phase."""
        summary = self.summary
        metrics: dict[str, Metric] = {f"accuracy_{task}": own.accuracy for task, own in summary.tasks.items()}
        metrics |= {"items": summary.asked, "items_planned": summary.planned}
        if summary.look is not None:
            metrics |= {"look": summary.look, "looks": summary.looks}
        if summary.perplexity is not None:
            metrics["perplexity"] = summary.perplexity
        if summary.divergence is not None:
            metrics["kl_at_least"] = summary.divergence.kl_at_least
            metrics["top_token_agreement"] = summary.divergence.top_token_agreement
        return metrics | {f"seconds_{phase}": value for phase, value in summary.seconds.items()}


class _Lane:
    """A checkpoint loaded and its questions built, with the time that each phase takes."""

    def __init__(self, inputs: Mapping[str, Path], evaluation: CheckpointEvaluation, dtype: str, workdir: Path) -> None:
        self.seconds: dict[str, float] = {}
        self.directory = workdir / "evaluation"
        self._started = time.monotonic()
        with self.phase("import"), sparing():  # a fifth of that time is the collector's, and finds nothing
            from llm_pipeline.accuracy.lm_eval_checkpoint import load_harness_model, use_processors
            from llm_pipeline.accuracy.questions import Questions
            from llm_pipeline.artifacts.checkpoint_loading import load_tokenizer
        spare_tool()
        use_processors()
        with self.phase("questions"):
            self.chat = (
                ChatTemplate.of(load_tokenizer(inputs["checkpoint"])) if evaluation.chat_template is not False else None
            )
            self.questions: Questions = Questions.load(
                inputs.get("tasks"), evaluation, evaluation.tasks, self.chat, inputs.get("eval_data")
            )
        with self.phase("load"):
            self.model: HarnessModel = load_harness_model(inputs["checkpoint"], evaluation, dtype)
        self.harness = {**self.questions.identity, **self.model.identity}
        self.portions = portions(self.questions.clusters)
        self.order = [place for portion in self.portions for place in portion]
        self._saved = SavedItems(workdir / "items", sha256_json([self.harness, self.order]))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 3)

    def item_runner(self, count: int) -> ItemRunner:
        """What asks the first `count` items."""
        self.model.progress = Progress("evaluating", len(self.questions.instances(self.order[:count])), "requests")
        return ItemRunner(self.questions, self.model, self.order, self._saved, self.model.progress)

    def written(self, items: list[ScoredItem], **facts: object) -> LaneEvaluation:
        """The evaluation, on disk too."""
        from llm_pipeline.accuracy.lm_eval_checkpoint import harness_versions

        given = {"harness": self.harness, "scoring": self.model.scoring, **self.questions.asked_for, **facts}
        summary = summarise(items, self.seconds, harness_versions()).model_copy(update=given)
        write_evaluation(self.directory, items, summary)
        if self.chat is not None:
            self.chat.write(self.directory)
        return LaneEvaluation(self.directory, tuple(items), summary, time.monotonic() - self._started)


def evaluate_baseline(
    inputs: Mapping[str, Path], evaluation: CheckpointEvaluation, dtype: str, workdir: Path
) -> LaneEvaluation:
    """Score every item on the checkpoint, and keep its token probabilities of some texts.

    Args:
        inputs: `checkpoint`, `tasks` unless they are lm-eval's own, and `eval_data`, what they read.
        evaluation: What is asked.
        dtype: Precision of everything that is not quantized.
        workdir: What an earlier, killed attempt asked is taken up from here.

    Raises:
        ConfigError: A task is unknown, its data are unreadable, or an item is too long.
        IntegrityError: The checkpoint is damaged, or its numbers are not finite.
    """
    lane = _Lane(inputs, evaluation, dtype, workdir)
    lane.model.refuse_what_would_be_cut(lane.questions.instances())
    with lane.phase("trial"):
        _try_each_task(lane)
    with lane.phase("scoring"):
        items = list(lane.item_runner(len(lane.order)).ask_until(len(lane.order)))
    lane.directory.mkdir(parents=True, exist_ok=True)
    with lane.phase("divergence"):
        perplexity = _write_reference(lane, items[:_REFERENCE_ITEMS])
    with lane.phase("chance"):
        items = [item.model_copy(update={"chance": lane.questions.chance(item)}) for item in items]
    return lane.written(items, perplexity=perplexity)


def _try_each_task(lane: _Lane) -> None:
    """Ask a few documents of each task before all of them: what cannot be scored is found out while it is cheap.

    Raises:
        ConfigError: An answer of a task has no score.
    """
    sizes = {task: len(clusters) for task, clusters in lane.questions.clusters.items()}
    places = [(task, number) for task, size in sizes.items() for number in range(min(size, _TRIED_DOCUMENTS))]
    without = [item for item in lane.questions.ask(lane.model, places) if item.score is None]
    if without:
        metrics = lane.questions.metrics
        lines = [f"item {item.item_id} of task {item.task} has no {metrics[item.task].metric}" for item in without]
        raise ConfigError("; ".join(lines), hint="name another metric in evaluation.task_options, or leave it out")


def _write_reference(lane: _Lane, items: list[ScoredItem]) -> float | None:
    from llm_pipeline.accuracy.divergence import reference_of

    texts = lane.model.tokens_of([lane.questions.text(item) for item in items])
    if not (texts := [text for text in texts if len(text) > 1]):
        return None
    reference = reference_of(lane.model.model, texts)
    reference.write(lane.directory)
    return reference.perplexity


def evaluate_candidate(
    inputs: Mapping[str, Path], evaluation: CheckpointEvaluation, policy: AccuracyPolicy, dtype: str, workdir: Path
) -> tuple[LaneEvaluation, Judgement]:
    """Score a candidate look by look until the gate decides, and measure its distance from the baseline.

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
    lane = _Lane(inputs, evaluation, dtype, workdir)
    before = read_summary(inputs["baseline"])
    refuse_other_harness(before.harness, lane.harness)
    baseline, groups = read_items(inputs["baseline"]), before.judged_as_one
    runner = lane.item_runner(len(lane.order))
    with lane.phase("scoring"):
        judgement, look = _decided(lambda: runner.ask_until_decided(baseline, lane.portions, policy, groups), runner)
    with lane.phase("divergence"):
        from llm_pipeline.accuracy.divergence import Reference, divergence_from

        reference = Reference.read(inputs["baseline"])
        divergence = divergence_from(reference, lane.model.model) if reference else None
    evaluated = lane.written(
        runner.items,
        planned=len(lane.order),
        look=look,
        looks=len(lane.portions),
        divergence=divergence,
        perplexity=divergence.perplexity if divergence else None,
    )
    return evaluated, judgement


def _decided(ask: Callable[[], tuple[Judgement, int]], runner: ItemRunner) -> tuple[Judgement, int | None]:
    """The judgement and its look; a candidate whose numbers are not finite fails at once."""
    from llm_pipeline.accuracy.questions import NotFinite

    try:
        return ask()
    except NotFinite as error:
        fact = Evidence(
            name="log-likelihoods that are numbers",
            verdict=Verdict.NO_GO,
            samples=len(runner.items),
            detail=f"{error.where}: {error.message}; {error.hint}",
        )
        return judge(f"The model is broken: {error.message} ({error.where}).", [fact]), None
