from pathlib import Path

import pytest

from llm_pipeline.flow import resolve_request
from llm_pipeline.planning.plan import time_warnings
from llm_pipeline.planning.stage_cost import StepCost
from llm_pipeline.release.loading import load_release
from llm_pipeline.release.time_limits import time_limit_seconds

DEMO = Path(__file__).parents[2] / "configs" / "releases" / "demo.yaml"
HOUR = 3600.0


@pytest.fixture(scope="module")
def release():
    return load_release(DEMO).release


def with_policy(release, **changes):
    return release.model_copy(update={"policy": release.policy.model_copy(update=changes)})


def test_every_stage_has_the_policys_limit(release):
    short = with_policy(release, time_limit_hours=2.0)
    assert time_limit_seconds(short, "quantize") == 2 * HOUR
    assert resolve_request(load_release(DEMO)).time_limit_seconds == release.policy.time_limit_hours * HOUR


def test_a_canary_step_may_bake_and_wait_for_a_person_as_long_as_its_policy_says(release):
    canary = release.policy.canary.model_copy(
        update={"maximum_bake_seconds": 10 * HOUR, "pause_deadline_seconds": 60 * HOUR}
    )
    assert time_limit_seconds(with_policy(release, canary=canary), "canary") > 70 * HOUR


def test_a_build_may_take_as_long_as_its_tool_and_a_load_test_as_long_as_its_windows(release):
    target = release.targets[0]
    build = target.build.model_copy(update={"time_limit_minutes": 60 * 100.0})
    slow = release.model_copy(update={"targets": (target.model_copy(update={"build": build}),)})
    assert time_limit_seconds(slow, "build") > 100 * HOUR
    workload = release.workload.model_copy(update={"duration_seconds": 20 * HOUR})
    assert time_limit_seconds(release.model_copy(update={"workload": workload}), "load_test") > 100 * HOUR


def test_plan_warns_of_a_step_that_is_expected_to_take_more_than_half_its_limit(release):
    costs = {("quantize", "int8"): StepCost(seconds=13 * HOUR), ("accuracy", "int8"): StepCost(seconds=11 * HOUR)}
    costs["download", ""] = StepCost()
    (warning,) = time_warnings(release, costs)
    assert "quantize int8 is expected to take 13 h and is stopped after 24 h" in warning
