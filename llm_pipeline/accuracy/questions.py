"""The items of an evaluation as lm-eval asks and scores them, in any order and any portions.

    questions = Questions.load(task_directory, evaluation, evaluation.tasks)
    items = questions.ask(model, [("gsm8k", 12), ("gsm8k", 7)])

`lm_eval.evaluate` asks everything at once. Here the requests are built once, all of them, so that the few-shot
examples of an item do not depend on which items are asked; then portions of them are given to the model, and the
tasks' own filters and metrics score each. lm-eval's caches of requests and of answers are not used: their keys do not
name the model, so a second checkpoint would be given the first one's answers.
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_EVALUATE_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TQDM_DISABLE", "1")  # a task log has lines, not bars

from llm_pipeline.accuracy.chat_template import ChatTemplate
from llm_pipeline.accuracy.gate import EACH_BY_ITSELF, ItemPlace, document_clusters
from llm_pipeline.accuracy.lm_eval_scores import apply_filters, item_scores, scored_values
from llm_pipeline.accuracy.lm_eval_tasks import LoadedTasks, PromptStyle, load_tasks, prompt_style, task_failure
from llm_pipeline.accuracy.task_metrics import ItemScore
from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.base.digest import sha256_json
from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.config.release import CheckpointEvaluation

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM

_FEW_SHOT_SEED = 1234
_TEMPLATES = 1024
_UNLIKELY = -50.0
"""Log-likelihood of a choice that is not guessed."""
_REHEARSED_DOCUMENTS = 2


class NotFinite(IntegrityError):
    """A model gave a log-likelihood that is not a number: it is broken, and has no score."""


@dataclass(frozen=True)
class _Question:
    """One document with its requests, in lm-eval's order."""

    document: Mapping[str, Any]
    fingerprint: str
    instances: Sequence[Instance]
    cluster: str


class Questions:
    """All items of some tasks, rendered.

    Attributes:
        tasks: lm-eval's tasks by name; groups are resolved.
        identity: What must be the same wherever these items are asked, see `harness`.
        groups: The groups that were asked for by name, each of them one score.
        tags: Tasks by the label that was asked for instead of them.
        metrics: By which metric each task is judged.
        data: The data of the hub that they were read from.
    """

    def __init__(
        self,
        loaded: LoadedTasks,
        items: Mapping[str, Sequence[_Question]],
        scores: Mapping[str, ItemScore],
        identity: Mapping[str, str],
    ) -> None:
        self.tasks, self.identity = loaded.tasks, dict(identity)
        self.metrics = {name: score.metric for name, score in scores.items()}
        self.groups, self.tags = loaded.judged(self.metrics)
        self.data = loaded.data
        self._items, self._scores = items, scores

    @property
    def asked_for(self) -> dict[str, object]:
        """What an evaluation's summary says of its tasks: groups, labels, metrics and data."""
        return {"groups": self.groups, "tags": self.tags, "metrics": self.metrics, "data": self.data}

    @classmethod
    def load(
        cls,
        task_directory: Path | None,
        evaluation: CheckpointEvaluation,
        names: Sequence[str],
        chat: ChatTemplate | None = None,
        data: Path | None = None,
    ) -> Questions:
        """Build every request of the tasks, and find out what each of them is scored by.

        Args:
            task_directory: Where the tasks' files are; None for lm-eval's own tasks.
            evaluation: How they are asked.
            names: The tasks; a group stands for its subtasks.
            chat: The model's chat format; None where it has none.
            data: What the `eval_data` stage fetched for them.

        Raises:
            ConfigError: A task is unknown, its data are unreadable, it cannot be judged item by item or not as the
                release config wants it, or no document has the cluster field.
        """
        _prepare_templates()
        loaded = load_tasks(task_directory, evaluation, names, data)
        styles = {name: prompt_style(name, task, evaluation, chat) for name, task in loaded.tasks.items()}
        items = {name: _questions(name, task, evaluation, styles[name]) for name, task in loaded.tasks.items()}
        rehearsed = {name: [one.instances for one in some[:_REHEARSED_DOCUMENTS]] for name, some in items.items()}
        scores = item_scores(loaded, rehearsed)
        for name, score in scores.items():
            scores[name] = score.asked(few_shots=styles[name].few_shots, chat_template=styles[name].chat is not None)
        field = evaluation.cluster_field
        if field not in (None, EACH_BY_ITSELF) and not any(
            item.cluster for task_items in items.values() for item in task_items
        ):
            raise ConfigError(f"no document has the cluster field {field!r}", where=", ".join(names))
        return cls(loaded, items, scores, _identity(loaded.tasks, items, scores, styles))

    @property
    def clusters(self) -> dict[str, list[str]]:
        """The cluster of each document of each task, by its number; an empty name is none."""
        return {name: [item.cluster for item in items] for name, items in self._items.items()}

    def instances(self, order: Iterable[ItemPlace] | None = None) -> list[Instance]:
        """The requests of some items, or of all."""
        if order is None:
            return [instance for items in self._items.values() for item in items for instance in item.instances]
        return [instance for task, number in order for instance in self._items[task][number].instances]

    def text(self, item: ScoredItem) -> str:
        """An item's prompt with its answer: what was generated, or else the right one."""
        if item.generative:
            return item.prompt + item.completion
        task, question = self.tasks[item.task], self._items[item.task][item.item_id]
        target = task.doc_to_target(question.document)
        right = target if isinstance(target, int) and 0 <= target < len(question.instances) else 0
        return "".join(question.instances[right].args[:2])

    def chance(self, item: ScoredItem) -> float | None:
        """What guessing scores on an item, on average over its choices; None where that is not known.

        The task's own metric scores each guess, so that questions with several right answers count as they do for a
        model. No guess hits a text that has to be written.
        """
        task, question = self.tasks[item.task], self._items[item.task][item.item_id]
        if not self.metrics[item.task].is_share:
            return None
        if task.OUTPUT_TYPE != "multiple_choice":
            return 0.0 if task.OUTPUT_TYPE in ("generate_until", "loglikelihood") else None
        # Mutual information asks for each choice a second time, without its context.
        choices = sum(one.args[0] != "" for one in question.instances) or len(question.instances)
        scores = [self._guess(task, question, choice) for choice in range(choices)]
        known = [score for score in scores if score is not None]
        return sum(known) / choices if len(known) == choices else None

    def _guess(self, task: Any, question: _Question, choice: int) -> float | None:
        answers = [(0.0, True) if n == choice else (_UNLIKELY, False) for n in range(len(question.instances))]
        values = task.process_results(question.document, answers)
        return self._scores[question.instances[0].task_name].of(values, "a guess")

    def ask(self, model: LM, order: Sequence[ItemPlace]) -> list[ScoredItem]:
        """Ask a model of lm-eval some items and score them, in the given order.

        Raises:
            IntegrityError: The model answers with another number of answers, or a score is NaN.
            NotFinite: A log-likelihood is NaN or infinite.
        """
        asked: dict[str, list[Instance]] = defaultdict(list)
        for instance in self.instances(order):
            instance.resps, instance.filtered_resps = [], {}
            asked[instance.request_type] += [instance] * (instance.repeats or 1)
        for kind, instances in asked.items():
            for instance, answer in zip(instances, _answers(model, kind, instances), strict=True):
                instance.resps.append(answer)
        by_task: dict[str, list[int]] = defaultdict(list)
        for task, number in order:
            by_task[task].append(number)
        for task, numbers in by_task.items():
            apply_filters(task, self.tasks[task], self.instances((task, number) for number in numbers))
        return [self._score(task, number) for task, number in order]

    def _score(self, name: str, number: int) -> ScoredItem:
        task, item = self.tasks[name], self._items[name][number]
        score = self._scores[name]
        values = scored_values(task, item.document, item.instances, score.metric.filter)
        generative = task.OUTPUT_TYPE == "generate_until"
        options = _generation_options(item.instances[0]) if generative else {}
        return ScoredItem(
            task=name,
            item_id=number,
            fingerprint=item.fingerprint,
            score=score.of(values, f"item {number} of task {name}"),
            generative=generative,
            cluster=item.cluster,
            prompt=str(item.instances[0].args[0]) if generative else "",
            completion=str(item.instances[0].resps[0]) if generative else "",
            stop=tuple(word for word in options.get("until", ()) if word),
            maximum_tokens=options.get("max_gen_toks"),
        )


def _generation_options(instance: Instance) -> Mapping[str, Any]:
    """What the task asks of a generation, with lm-eval's defaults."""
    from lm_eval.models.utils import normalize_gen_kwargs

    options: Mapping[str, Any] = normalize_gen_kwargs(instance.args[1])
    return options


def _answers(model: LM, kind: str, instances: Sequence[Instance]) -> list[Any]:
    answers = list(getattr(model, kind)(list(instances)))
    if len(answers) != len(instances):
        raise IntegrityError(f"{len(answers)} answers to {len(instances)} requests", where=kind)
    if kind.startswith("loglikelihood"):
        for instance, answer in zip(instances, answers, strict=True):
            value = answer[0] if isinstance(answer, tuple) else answer
            if not math.isfinite(value):
                raise NotFinite(
                    f"a log-likelihood is {value}",
                    where=f"item {instance.doc_id} of task {instance.task_name}",
                    hint="the weights or their scales overflow: quantize otherwise, or evaluate in bfloat16",
                )
    return answers


def _prepare_templates() -> None:
    """Give lm-eval an environment for its tasks' templates that keeps them, and in which they run nothing.

    lm-eval compiles a task's templates again for each document, which takes longer than all else it does; and a
    template in its own environment can reach any object of Python, so a data file would be code.
    """
    from jinja2.sandbox import SandboxedEnvironment
    from lm_eval import utils

    if isinstance(utils.env, SandboxedEnvironment):
        return
    environment = SandboxedEnvironment(
        loader=utils.env.loader, undefined=utils.env.undefined, keep_trailing_newline=utils.env.keep_trailing_newline
    )
    environment.filters |= utils.env.filters
    environment.from_string = functools.lru_cache(maxsize=_TEMPLATES)(environment.from_string)  # type: ignore[assignment,method-assign]
    utils.env = environment


def _identity(
    tasks: Mapping[str, Any],
    items: Mapping[str, Sequence[_Question]],
    scores: Mapping[str, ItemScore],
    styles: Mapping[str, PromptStyle],
) -> dict[str, str]:
    identity = {"lm-eval": metadata.version("lm_eval"), "few-shot seed": str(_FEW_SHOT_SEED)}
    for name, task in tasks.items():
        metric, chat = scores[name].metric, styles[name].chat
        identity[f"chat template of {name}"] = chat.digest if chat else "none"
        identity[f"task {name}"] = _task_digest(task)
        identity[f"questions of {name}"] = sha256_json([item.fingerprint for item in items[name]])
        identity[f"score of {name}"] = f"{metric.metric}, {metric.filter}"
    return identity


def _questions(name: str, task: Any, evaluation: CheckpointEvaluation, style: PromptStyle) -> list[_Question]:
    task.set_fewshot_seed(seed=_FEW_SHOT_SEED)
    try:
        task.build_all_requests(limit=evaluation.limit, cache_requests=False, **style.request_options)
    except Exception as error:
        raise task_failure(error, "its prompts cannot be built", f"task {name}") from error
    by_document: dict[int, list[Instance]] = defaultdict(list)
    for instance in task.instances:
        by_document[instance.doc_id].append(instance)
    if sorted(by_document) != list(range(len(by_document))):
        raise IntegrityError("lm-eval left out documents, or repeated some", where=name)
    by_number = [sorted(by_document[number], key=lambda one: one.idx) for number in range(len(by_document))]
    clusters = document_clusters([instances[0].doc for instances in by_number], evaluation.cluster_field)
    return [_question(task, instances, cluster) for instances, cluster in zip(by_number, clusters, strict=True)]


def _question(task: Any, instances: Sequence[Instance], cluster: str) -> _Question:
    from lm_eval.utils import handle_non_serializable

    document = instances[0].doc
    prompts = [[str(part) for part in one.args] for one in instances]
    content = json.dumps(document, default=handle_non_serializable, sort_keys=True)
    fingerprint = sha256_json([content, prompts, str(task.doc_to_target(document))])
    return _Question(document, fingerprint, instances, cluster)


def _task_digest(task: Any) -> str:
    """Digest of a task's configuration; its data have their own."""
    configuration = {key: value for key, value in task.dump_config().items() if key != "custom_dataset"}
    return sha256_json(json.dumps(configuration, default=lambda value: type(value).__name__, sort_keys=True))
