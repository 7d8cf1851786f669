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
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TQDM_DISABLE", "1")  # a task log has lines, not bars

import numpy as np

from llm_pipeline.accuracy.items import ScoredItem
from llm_pipeline.accuracy.lm_eval_tasks import groups_and_tags, task_manager
from llm_pipeline.accuracy.saved_items import Place
from llm_pipeline.accuracy.task_groups import TaskGroup
from llm_pipeline.config.release import Evaluation
from llm_pipeline.digest import sha256_json
from llm_pipeline.errors import ConfigError, IntegrityError

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM

PREFERRED_METRICS = ("exact_match", "acc", "pass@1", "f1")
"""Which metric of an item is its score: the first of these that is a number there."""
_FEW_SHOT_SEED = 1234
_TEMPLATES = 1024
_UNLIKELY = -50.0
"""Log-likelihood of a choice that is not guessed."""


class NotFinite(IntegrityError):
    """A model gave a log-likelihood that is no number: it is broken, and has no score."""


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
    """

    def __init__(
        self,
        tasks: Mapping[str, Any],
        items: Mapping[str, Sequence[_Question]],
        identity: Mapping[str, str],
        groups: Sequence[TaskGroup] = (),
        tags: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ) -> None:
        self.tasks, self.identity = tasks, dict(identity)
        self.groups, self.tags = tuple(groups), dict(tags)
        self._items = items

    @property
    def asked_for(self) -> dict[str, object]:
        """What an evaluation's summary says of its tasks: the groups, the labels."""
        return {"groups": self.groups, "tags": self.tags}

    @classmethod
    def load(cls, task_directory: Path | None, evaluation: Evaluation, names: Sequence[str]) -> Questions:
        """Build every request of the tasks.

        Args:
            task_directory: Where the tasks' files are; None for lm-eval's own tasks.
            evaluation: Limit and cluster field.
            names: The tasks; a group stands for its subtasks.

        Raises:
            ConfigError: A task is unknown, its data are unreadable, or no document has the cluster field.
        """
        _compile_templates_once()
        manager = task_manager(task_directory)
        if task_directory is None and (unknown := sorted(set(names) - set(manager.all_tasks))):
            raise ConfigError(f"lm-eval has no task {', '.join(unknown)}", hint="`lm-eval ls tasks` names all of them")
        loaded = manager.load(list(names))
        tasks = dict(loaded["tasks"])
        identity = {"lm-eval": metadata.version("lm_eval"), "few-shot seed": str(_FEW_SHOT_SEED)}
        identity["chat template"] = "none"
        items: dict[str, list[_Question]] = {}
        for name, task in sorted(tasks.items()):
            items[name] = _questions(name, task, evaluation)
            identity[f"task {name}"] = _task_digest(task)
            identity[f"questions of {name}"] = sha256_json([item.fingerprint for item in items[name]])
        field = evaluation.cluster_field
        if field and not any(item.cluster for task_items in items.values() for item in task_items):
            raise ConfigError(f"no document has the cluster field {field!r}", where=", ".join(names))
        groups, tags = groups_and_tags(manager, loaded["groups"], names)
        return cls(tasks, items, identity, groups, tags)

    @property
    def clusters(self) -> dict[str, list[str]]:
        """The cluster of each document of each task, by its number; an empty name is none."""
        return {name: [item.cluster for item in items] for name, items in self._items.items()}

    def instances(self, order: Iterable[Place] | None = None) -> list[Instance]:
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
        if task.OUTPUT_TYPE != "multiple_choice":
            return 0.0 if task.OUTPUT_TYPE in ("generate_until", "loglikelihood") else None
        # Mutual information asks for each choice a second time, without its context.
        choices = sum(one.args[0] != "" for one in question.instances) or len(question.instances)
        scores = [self._guess(task, question, choice) for choice in range(choices)]
        known = [score for score in scores if score is not None]
        return sum(known) / choices if len(known) == choices else None

    def _guess(self, task: Any, question: _Question, choice: int) -> float | None:
        answers = [(0.0, True) if n == choice else (_UNLIKELY, False) for n in range(len(question.instances))]
        return preferred_score(task.process_results(question.document, answers), "a guess")

    def ask(self, model: LM, order: Sequence[Place]) -> list[ScoredItem]:
        """Ask items and score them.

        Args:
            model: Any model of lm-eval.
            order: Which items; the result is in this order.

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
            self.tasks[task]._instances = self.instances((task, number) for number in numbers)  # noqa: SLF001
            self.tasks[task].apply_filters()
        return [self._score(task, number) for task, number in order]

    def _score(self, name: str, number: int) -> ScoredItem:
        task, item = self.tasks[name], self._items[name][number]
        # Several filters are several readings of one answer; the first one is the task's own.
        kept = next(iter(item.instances[0].filtered_resps))
        metrics = task.process_results(item.document, [one.filtered_resps[kept] for one in item.instances])
        generative = task.OUTPUT_TYPE == "generate_until"
        return ScoredItem(
            task=name,
            item_id=number,
            fingerprint=item.fingerprint,
            score=preferred_score(metrics, f"item {number} of task {name}"),
            generative=generative,
            cluster=item.cluster,
            prompt=str(item.instances[0].args[0]) if generative else "",
            completion=str(item.instances[0].resps[0]) if generative else "",
        )


def preferred_score(metrics: Mapping[str, Any], where: str) -> float | None:
    """The item's score out of its metrics, or None if it has none that we know.

    Raises:
        IntegrityError: It is NaN or infinite.
    """
    for name in PREFERRED_METRICS:
        value = metrics.get(name)
        if isinstance(value, bool | int | float | np.number):
            if not math.isfinite(value):
                raise IntegrityError(f"its {name} is {value}", where=where)
            return float(value)
    return None


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


def _compile_templates_once() -> None:
    """lm-eval compiles a task's templates again for each document, which takes longer than all else it does."""
    from lm_eval.utils import env

    if not hasattr(env.from_string, "cache_info"):
        env.from_string = functools.lru_cache(maxsize=_TEMPLATES)(env.from_string)


def _questions(name: str, task: Any, evaluation: Evaluation) -> list[_Question]:
    from lm_eval.utils import handle_non_serializable

    if task.get_config("num_fewshot") is None:
        task.set_config(key="num_fewshot", value=0)
    task.set_fewshot_seed(seed=_FEW_SHOT_SEED)
    task.build_all_requests(limit=evaluation.limit, cache_requests=False)
    by_document: dict[int, list[Instance]] = defaultdict(list)
    for instance in task.instances:
        by_document[instance.doc_id].append(instance)
    if sorted(by_document) != list(range(len(by_document))):
        raise IntegrityError("lm-eval left out documents, or asks some twice", where=name)
    questions = []
    for number in range(len(by_document)):
        instances = sorted(by_document[number], key=lambda one: one.idx)
        document = instances[0].doc
        prompts = [[str(part) for part in one.args] for one in instances]
        content = json.dumps(document, default=handle_non_serializable, sort_keys=True)
        fingerprint = sha256_json([content, prompts, str(task.doc_to_target(document))])
        cluster = str(document.get(evaluation.cluster_field, "")) if evaluation.cluster_field else ""
        questions.append(_Question(document, fingerprint, instances, cluster))
    return questions


def _task_digest(task: Any) -> str:
    """Digest of a task's configuration; its data have their own."""
    configuration = {key: value for key, value in task.dump_config().items() if key != "custom_dataset"}
    return sha256_json(json.dumps(configuration, default=lambda value: type(value).__name__, sort_keys=True))
