"""What is known of a release's tasks before anything runs: items and kind, where they can be scored, what is wrong.

Local task files are read, and their data counted; of lm-eval's own tasks a table holds the well-known ones. Some
engines tell no likelihoods of given texts when they are served. The `eval_data` stage finds out the rest by loading
each task, before a model is there.

At the end: whether gates have the evidence that they need, items of accuracy gates, requests of load gate and canary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from functools import cache, partial
from math import ceil
from pathlib import Path

from llm_pipeline.accuracy.gate import TYPICAL_FLIPS, items_needed
from llm_pipeline.accuracy.task_files import TaskDirectory, read_task_directory
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.quantities import duration
from llm_pipeline.base.records import Frozen
from llm_pipeline.catalog.tables import read_table
from llm_pipeline.config.policy import AccuracyPolicy, CanaryPolicy
from llm_pipeline.config.release import Evaluation
from llm_pipeline.config.target import Target
from llm_pipeline.engines.builder import engine_adapter
from llm_pipeline.loadtest.duration import SampleSize
from llm_pipeline.planning.compatibility import Refused

_KNOWN = partial(read_table, "known_tasks")
"""What is known of lm-eval's own tasks: sizes, modules they need, whether they run what the model writes."""


class TaskItems(Frozen):
    """One task.

    Attributes:
        items: Items that would be asked; None where that is not known.
        output_type: lm-eval's word for what is asked of the model; None where that is not known.
        prompt_tokens: Tokens that an item is read with, roughly; None where nothing is known.
        output_tokens: Tokens that an item is answered with, roughly; None where nothing is known.
        local: Whether all of its data lie in the task directory: it reads nothing of the hub.
    """

    name: str
    items: int | None = None
    output_type: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    local: bool = False

    @property
    def is_generative(self) -> bool | None:
        """Whether the model writes the answer; None where that is not known."""
        return None if self.output_type is None else self.output_type == "generate_until"


def task_pool(evaluation: Evaluation, configs_root: Path) -> tuple[TaskItems, ...]:
    """The tasks of an evaluation, `limit` applied.

    Raises:
        ConfigError: A task file or its data are missing or damaged.
    """
    defined, limit = _task_directory(evaluation, configs_root), evaluation.limit
    known = known_tasks()
    if defined is not None:
        known = known | {name: one for name in evaluation.tasks if (one := _local(defined, name)) is not None}
    pool = [known.get(name, TaskItems(name=name)) for name in evaluation.tasks]
    return tuple(
        task.model_copy(update={"items": min(task.items, limit)}) if limit is not None and task.items else task
        for task in pool
    )


def _local(defined: TaskDirectory, name: str) -> TaskItems | None:
    """A task of the directory, or all tasks of a group or tag together; None where it has no such name."""
    tasks, unknown = defined.behind([name])
    if name in unknown:
        return None
    files = [defined.tasks[task] for task in tasks]
    counts = [defined.documents(task) for task in tasks]
    kinds = {str(file.content.get("output_type", "generate_until")) for file in files}  # lm-eval's default
    return TaskItems(
        name=name,
        items=sum(count or 0 for count in counts) if not unknown and None not in counts else None,
        output_type=kinds.pop() if len(kinds) == 1 and not unknown else None,
        local=not unknown and all(file.brings_data for file in files),
    )


@cache
def known_tasks() -> dict[str, TaskItems]:
    """Well-known tasks of lm-eval's own, by name."""
    return {row["name"]: TaskItems.model_validate(row) for row in _KNOWN()["tasks"]}


def judge_task_placement(
    pool: Sequence[TaskItems], served: Sequence[str], targets: Sequence[Target]
) -> tuple[tuple[Refused, ...], tuple[str, ...]]:
    """What is wrong with the tasks that are scored through the endpoint, and what is not known of them."""
    without = {target.engine for target in targets if not engine_adapter(target.engine).scores_prompts}
    silent = " and ".join(sorted(without))
    by_name = {task.name: task for task in pool}
    tasks = [by_name[name] for name in served] if silent else []
    generative = [task.name for task in pool if task.is_generative]
    refusals = tuple(
        Refused(
            reason=f"served_tasks: {task.name} is {task.output_type}, which needs the likelihood of given texts, and "
            f"{silent} tells none when served",
            nearest=f"served_tasks: [{', '.join(generative)}]" if generative else "add a generative task to tasks",
        )
        for task in tasks
        if task.is_generative is False
    )
    unknown = [task.name for task in tasks if task.is_generative is None]
    warning = f"served_tasks: whether {', '.join(unknown)} are generative is not known here, which {silent} needs"
    return refusals, (warning,) if unknown else ()


def check_tasks(evaluation: Evaluation, configs_root: Path) -> tuple[str, ...]:
    """Refuse tasks that cannot be judged, or that do what they may not.

    Returns:
        Warnings: modules that tasks need where models are evaluated.

    Raises:
        ConfigError: A task is unknown, has no score of single items, or runs code without permission.
    """
    defined = _task_directory(evaluation, configs_root)
    tasks, others = defined.behind(evaluation.tasks) if defined else (set(), set(evaluation.tasks))
    generated = {name for name in others if any(fnmatch(name, one) for one in _KNOWN()["generated_code"])}
    if defined is not None:
        known = {*tasks, *defined.groups, *defined.tags}
        if not others and (strange := sorted(evaluation.task_options.keys() - known)):
            raise ConfigError(f"evaluation.task_options names {', '.join(strange)}, which is not one of the tasks")
        generated |= {name for name in tasks if defined.tasks[name].content.get("unsafe_code")}
    if generated and not evaluation.allow_generated_code:
        raise ConfigError(
            f"{', '.join(sorted(generated))} runs code that the model writes, on the machine that evaluates",
            hint="set evaluation.allow_generated_code: true if that machine may, or leave the task out",
        )
    return tuple(
        f"{name} needs the Python modules {', '.join(modules)} where models are evaluated: `llm-pipeline doctor` with "
        "this release config looks for them"
        for name, modules in task_modules(evaluation).items()
    )


def task_modules(evaluation: Evaluation) -> dict[str, tuple[str, ...]]:
    """Modules that lm-eval's own tasks import beside its requirements, by task; tasks without any are left out."""
    patterns: Mapping[str, list[str]] = _KNOWN()["modules"]
    found = {
        name: {module for pattern, own in patterns.items() if fnmatch(name, pattern) for module in own}
        for name in evaluation.tasks
    }
    return {name: tuple(sorted(modules)) for name, modules in found.items() if modules}


def _task_directory(evaluation: Evaluation, configs_root: Path) -> TaskDirectory | None:
    if evaluation.task_directory is None:
        return None
    return read_task_directory(configs_root / evaluation.task_directory, allow_code=evaluation.allow_task_code)


POWER = 0.8
"""Below this chance that a lossless model passes, the plan warns."""


def gate_warnings(gate: str, tasks: Sequence[TaskItems], policy: AccuracyPolicy) -> Iterator[str]:
    """What keeps an accuracy gate from deciding, before anything is spent on it.

    Args:
        gate: `accuracy` or `served_accuracy`.
        tasks: What is asked; a group is one task.
        policy: When a loss is too much.
    """
    known = {task.name: task.items for task in tasks if task.items is not None}
    if unknown := [task.name for task in tasks if task.name not in known]:
        yield f"{gate}: how many items {', '.join(unknown)} have is not known here: whether they suffice is not judged"
    else:
        yield from (f"{gate}: {line}" for line in _too_few(known, policy))


def _too_few(known: Mapping[str, int], policy: AccuracyPolicy) -> Iterator[str]:
    """What a model that lost nothing would hardly pass."""
    pool = sum(known.values())
    if pool < policy.minimum_items:
        yield f"{pool} items are fewer than minimum_items {policy.minimum_items}: it can only be INCONCLUSIVE"
    margins = [("all tasks together", pool, policy.margin), *((*task, policy.task_margin) for task in known.items())]
    for name, items, margin in margins:
        needed = items_needed(margin, TYPICAL_FLIPS, policy.confidence, POWER)
        if items < needed:
            wide = ceil(1000 * margin * (needed / items) ** 0.5) / 10 if items else 50.0
            yield (
                f"{name}: {items} items are too few for a margin of {100 * margin:g} points: a model that lost nothing "
                f"passes in less than {100 * POWER:.0f} % when {100 * TYPICAL_FLIPS:g} % flip; {needed} items "
                f"or a margin of {wide:g} points would do"
            )


def load_test_warnings(size: SampleSize) -> Iterator[str]:
    """What may keep the load gate from deciding; what must is refused (`loadtest/duration.py`)."""
    if size.requests < size.needed_with_misses:
        yield (
            f"load_test: its {size.windows} windows have {size.requests} requests; {size.needed} are needed when none "
            f"misses, {size.needed_with_misses} when half of the tolerated share does, and more where windows differ"
        )


def request_seconds(policy: CanaryPolicy, rate_per_second: float, percent: float) -> float:
    """How long a canary's step waits for the requests that it needs."""
    return policy.minimum_requests / (rate_per_second * percent / 100)


def canary_warnings(policy: CanaryPolicy, rate_per_second: float) -> Iterator[str]:
    """What keeps a step from deciding at the workload's rate."""
    needed = {percent: request_seconds(policy, rate_per_second, percent) for percent in policy.steps_percent}
    late = {percent: seconds for percent, seconds in needed.items() if seconds > policy.maximum_bake_seconds}
    if late:
        enough = ceil(10 * request_seconds(policy, rate_per_second, 1.0) / policy.maximum_bake_seconds) / 10
        found = ", ".join(f"{duration(seconds)} at {percent:g} %" for percent, seconds in late.items())
        yield (
            f"canary: minimum_requests {policy.minimum_requests} take {found}: beyond maximum_bake_seconds "
            f"{policy.maximum_bake_seconds:g} a step ends undecided; from {enough:g} % on it would decide"
        )
