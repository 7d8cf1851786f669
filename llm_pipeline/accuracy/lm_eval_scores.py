"""The metrics of lm-eval's tasks, found before any model is run.

Each task is rehearsed: the right answers of a few documents go through its own filters and metrics. What comes back
says which metrics it has and which of them are one number an item, and a package or a permission that its scoring
needs is missed here, not after the baseline was paid for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llm_pipeline.accuracy.lm_eval_tasks import LoadedTasks, options_of, task_failure
from llm_pipeline.accuracy.task_metrics import Described, ItemScore, choose_filter, choose_metric
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.release import TaskOptions

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

_UNLIKELY = -50.0
"""Log-likelihood of an answer that is not the right one."""
_LIKELIHOOD_OF_TEXT = -100.0


def item_scores(loaded: LoadedTasks, documents: Mapping[str, Sequence[Sequence[Instance]]]) -> dict[str, ItemScore]:
    """By which metric each task is judged, found out with the requests of a few documents of each.

    Raises:
        ConfigError: A task cannot be judged item by item, or lacks what is named, or something it needs is missing.
    """
    found, problems = {}, []
    for name, task in loaded.tasks.items():
        try:
            found[name] = _item_score(name, task, documents[name], loaded, options_of(name, loaded))
        except ConfigError as error:
            problems.append(error)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise ConfigError("; ".join(error.message for error in problems), hint=problems[0].hint)
    return found


def _item_score(
    name: str, task: Any, documents: Sequence[Sequence[Instance]], loaded: LoadedTasks, options: TaskOptions
) -> ItemScore:
    of_groups = [entry for group in loaded.groups_of(name) for entry in group.aggregate_metric_list or ()]
    group_filters = [one for entry in of_groups for one in entry.filter_list or ()]
    filters = filter_names(task)
    kept = choose_filter(name, filters, options.filter, group_filters)
    values = [_rehearsed(name, task, instances, kept) for instances in documents]
    described = Described(name, values[0], _aggregations(task), dict(task.higher_is_better()))
    score = choose_metric(described, options.metric, [entry.metric for entry in of_groups])
    for number, one in enumerate(values):
        score.of(one, f"the right answer to document {number} of task {name}")
    return ItemScore(score.metric.model_copy(update={"filter": kept}), score.read)


def filter_names(task: Any) -> list[str]:
    """The readings of an answer that a task has, in its order."""
    return [one.name for one in getattr(task, "_filters", [])] or ["none"]


def scored_values(task: Any, document: Any, instances: Sequence[Instance], kept: str) -> Mapping[str, Any]:
    """lm-eval's metrics of a document whose requests were answered and filtered.

    Raises:
        ConfigError: The task's own scoring fails.
    """
    try:
        values: Mapping[str, Any] = task.process_results(document, [one.filtered_resps[kept] for one in instances])
    except Exception as error:
        where = f"item {instances[0].doc_id} of task {instances[0].task_name}"
        raise task_failure(error, "an answer cannot be scored", where) from error
    return values


def apply_filters(name: str, task: Any, instances: list[Instance]) -> None:
    """Read the answers of some requests, in each of the task's ways.

    Raises:
        ConfigError: A filter fails.
    """
    task._instances = instances  # noqa: SLF001
    try:
        task.apply_filters()
    except Exception as error:
        raise task_failure(error, "a filter of its answers fails", f"task {name}") from error


def _rehearsed(name: str, task: Any, instances: Sequence[Instance], kept: str) -> Mapping[str, Any]:
    document = instances[0].doc
    right = _right_answer(name, task, document)
    for one in instances:
        one.resps, one.filtered_resps = [_answer(one, right)] * (one.repeats or 1), {}
    apply_filters(name, task, list(instances))
    values = scored_values(task, document, instances, kept)
    for one in instances:
        one.resps, one.filtered_resps = [], {}
    return values


def _right_answer(name: str, task: Any, document: Any) -> Any:
    try:
        right = task.doc_to_target(document)
        if (
            isinstance(right, int)
            and task.get_config("doc_to_choice") is not None
            and task.OUTPUT_TYPE != "multiple_choice"
        ):
            return task.doc_to_choice(document)[right]
    except Exception as error:
        raise task_failure(error, "a document's right answer cannot be read", f"task {name}") from error
    return right


def _answer(one: Instance, right: Any) -> Any:
    if one.request_type == "loglikelihood":
        is_right = one.idx == (right if isinstance(right, int) else 0)
        return (0.0, True) if is_right else (_UNLIKELY, False)
    if one.request_type == "loglikelihood_rolling":
        return _LIKELIHOOD_OF_TEXT
    return str(right[0] if isinstance(right, list) and right else right)


def _aggregations(task: Any) -> dict[str, Any]:
    """How lm-eval makes one number of each metric: its own name of the function, or the function of the task."""
    from lm_eval.api.registry import AGGREGATION_REGISTRY

    names = {function: name for name, function in AGGREGATION_REGISTRY.items()}
    return {metric: names.get(function, function) for metric, function in task.aggregation().items()}
