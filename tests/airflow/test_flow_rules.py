"""The flow's rules on everything that can happen to a release; in memory."""

from __future__ import annotations

import pytest
from flow_cases import CASES, RECIPES, TARGETS, Case, walk

from llm_pipeline.release.loading import load_release
from llm_pipeline.release.rules import run_fails
from llm_pipeline.release.step import Ending
from llm_pipeline.release.tasks import Task, release_tasks

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
