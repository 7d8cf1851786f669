"""The flow's rules on everything that can happen to a release; in memory.

Edges that others imply are not drawn: whatever ends first, a task still starts after all that the flow states.
"""

from __future__ import annotations

import random

import pytest
from flow_cases import CASES, RECIPES, TARGETS, Case, walk

from llm_pipeline.release import tasks as layout
from llm_pipeline.release.loading import load_release
from llm_pipeline.release.rules import Endings, run_fails, unstarted
from llm_pipeline.release.step import Ending, Start
from llm_pipeline.release.tasks import Instance, Task, instances, release_tasks

GOOD, SKIPPED, NOT_REACHED = Ending.GOOD, Ending.SKIPPED, Ending.NOT_REACHED
TAKEN_BACK = ("staging", "staging_down", "rollback")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory, make_project) -> tuple[Task, ...]:
    project = make_project(tmp_path_factory.mktemp("release"), approval=True)
    return release_tasks(load_release(project.config).release, RECIPES)


@pytest.mark.parametrize("name", CASES)
def test_whatever_happens_what_was_begun_is_taken_back_and_no_traffic_moves_unasked(tasks, name):
    walked = walk(tasks, CASES[name])
    started = walked.started
    moved = {subject.partition(":")[0] for stage, subject in started if stage == "canary"}
    settled = {target for target in TARGETS if _settled(walked, target)}
    staged, down, back = ({subject for stage, subject in started if stage == name} for name in TAKEN_BACK)
    assert (down, back, started[-1]) == (staged, moved - settled, ("report", ""))
    for number, target in enumerate(TARGETS, start=1):
        if target in moved:
            assert walked.endings.one("targets.load_test", target) is GOOD
            assert walked.endings.one("approve", "") is GOOD
        if target in settled:
            assert walked.endings.one(f"promotion_{number}.canary_100", target) is GOOD
    assert (settled == {*TARGETS}) is not bool(list(run_fails(tasks, walked.endings))), "every target was promoted"
    assert len(walked.endings._ended) == sum(len(task.items) for task in tasks), "every instance ends somehow"


@pytest.mark.parametrize("stage", ["choose", "build", "package", "staging", "served_accuracy", "load_test"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_target_that_fails_stops_itself_only(tasks, stage, target):
    walked = walk(tasks, Case({f"{stage}/{target}": {"verdict": "NO_GO"}}))
    other = next(one for one in TARGETS if one != target)
    assert (_settled(walked, target), _settled(walked, other)) == (False, True)


@pytest.mark.parametrize("step", ["canary/{}:5", "settle/{}"])
def test_a_promotion_that_fails_stops_the_targets_behind_it_and_none_before_it(tasks, step):
    first, second = (walk(tasks, Case({step.format(target): {"verdict": "NO_GO"}})) for target in TARGETS)
    assert not any(_settled(first, target) for target in TARGETS)
    assert first.endings.one("promotion_2.canary_5", "cpu-b") is SKIPPED
    assert [_settled(second, target) for target in TARGETS] == [True, False]


def test_a_recipe_that_fails_is_followed_by_the_next_and_one_that_passes_ends_the_climb(tasks):
    assert ("quantize", "large") not in walk(tasks, Case()).started
    for stage in ("quantize", "accuracy"):
        walked = walk(tasks, Case({f"{stage}/small": {"error": "terminal"}}))
        assert ("accuracy", "large") in walked.started
        assert all(_settled(walked, target) for target in TARGETS)


def test_nothing_is_quantized_once_the_baseline_was_refused(tasks):
    walked = walk(tasks, CASES["baseline refused"])
    assert {stage for stage, _ in walked.started} == {
        "resolve", "eval_data", "download", "baseline", "baseline_gate", "report"
    }  # fmt: skip


def test_a_declined_licence_ends_the_release_before_a_byte_is_fetched(tasks):
    walked = walk(tasks, Case(declined=("review_license",)))
    assert walked.started == [("resolve", ""), ("report", "")]


def test_a_declined_approval_moves_no_traffic(tasks):
    walked = walk(tasks, CASES["production declined"])
    assert walked.endings.one("promotion_1.canary_5", TARGETS[0]) is NOT_REACHED
    assert walked.endings.one("promotion_2.canary_5", TARGETS[1]) is SKIPPED


def _settled(walked, target: str) -> bool:
    return walked.endings.one(f"promotion_{TARGETS.index(target) + 1}.settle", target) is GOOD


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
