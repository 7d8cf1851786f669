"""Edges that others imply are not drawn: whatever ends first, a task still starts after all that the flow states."""

from __future__ import annotations

import random

import pytest
from flow_cases import CASES, RECIPES, Case

from llm_pipeline.release import tasks as layout
from llm_pipeline.release.loading import load_release
from llm_pipeline.release.rules import Endings, unstarted
from llm_pipeline.release.step import Ending, Start
from llm_pipeline.release.tasks import Instance, Task, instances, release_tasks


@pytest.fixture(params=["climb", "every"], scope="module")
def drawn_and_stated(request, tmp_path_factory, make_project) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """The tasks of a release, and the same with every edge that the flow states."""
    project = make_project(tmp_path_factory.mktemp("release"), approval=True)
    project.add("releases/tiny", f"ladder: {{ strategy: {request.param} }}\n")
    project.edit("policies/quick", "[5, 100]", "[5, 100], approve_before_percent: [5]")
    release = load_release(project.config).release
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "_without_implied", iter)
        stated = release_tasks(release, RECIPES)
    return release_tasks(release, RECIPES), stated


def run_at_once(tasks: tuple[Task, ...], case: Case, seed: int) -> tuple[list[Instance], dict[Instance, set]]:
    """Start what may start as Airflow does, many at once, and end it in any order.

    Returns what was started, and by each what had ended by then.
    """
    order = random.Random(seed)  # noqa: S311
    endings, started, ended_before = Endings(tasks), [], {}
    waiting, running = list(instances(tasks)), []
    while waiting or running:
        ready = [one for one in waiting if may_end(one, endings, tasks)]
        one = order.choice([*ready, *running])
        if one in running:
            running.remove(one)
            endings.start(one)
            endings.end(one, case.ending(one))
            continue
        waiting.remove(one)
        if (ending := unstarted(one, endings)) is not None:
            endings.end(one, ending)
            continue
        started.append(one)
        ended_before[one] = set(endings._ended)
        running.append(one)
    return started, ended_before


def may_end(instance: Instance, endings: Endings, tasks: tuple[Task, ...]) -> bool:
    """Whether Airflow looks at a task now: all before it have ended, or one of them so that it is not to start."""
    keys = before(instance, tasks)
    ended = [endings._ended[key] for key in keys if key in endings._ended]
    decides, all_good = instance.task.step.decides, instance.task.start is Start.ALL_GOOD
    stopped = all_good and any(one is not Ending.GOOD for one in ended)
    return len(ended) == len(keys) or (decides and stopped)


def before(instance: Instance, tasks: tuple[Task, ...]) -> list[tuple[str, str]]:
    by_id = {task.id: task for task in tasks}
    own = instance.task.lane
    return [
        (task.id, item)
        for task in map(by_id.__getitem__, by_id[instance.task.id].after)
        for item in ((instance.item,) if own is not None and task.lane == own else task.items)
    ]


@pytest.mark.parametrize("name", CASES)
def test_a_task_starts_after_all_that_the_flow_states_and_the_same_tasks_start(drawn_and_stated, name):
    drawn, stated = drawn_and_stated
    for seed in range(5):
        started, ended_before = run_at_once(drawn, CASES[name], seed)
        for one in started:
            assert ended_before[one].issuperset(before(one, stated)), one
        wanted, _ = run_at_once(stated, CASES[name], seed)
        beside = {"quantize"}  # where workers are free, a recipe is quantized while the baseline is scored
        assert {one.key for one in started if one.task.step.name not in beside} == {
            one.key for one in wanted if one.task.step.name not in beside
        }
