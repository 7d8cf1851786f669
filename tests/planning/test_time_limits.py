from pathlib import Path

import pytest

from llm_pipeline.planning.plan import time_warnings
from llm_pipeline.planning.stage_cost import StepCost
from llm_pipeline.release.loading import load_release
from llm_pipeline.release.time_limit import time_limit
from llm_pipeline.release_progress import resolve_request

DEMO = Path(__file__).parents[2] / "configs" / "releases" / "demo.yaml"
HOUR = 3600.0


@pytest.fixture(scope="module")
def release():
    return load_release(DEMO).release


def with_policy(release, **changes):
    return release.model_copy(update={"policy": release.policy.model_copy(update=changes)})


def test_the_limit_is_the_plans_time_by_the_policys_factor_between_its_bounds(release):
    planned = time_limit(release, "quantize", 2 * HOUR)
    assert (planned.seconds, planned.stall_seconds, planned.longest_seconds) == (8 * HOUR, 2 * HOUR, 24 * HOUR)
    assert planned.basis == "4 x the planned 2 h"
    assert planned.setting == f"longest_stage_hours of policy {release.policy.name}"
    assert time_limit(release, "quantize", 3.0).seconds == 0.5 * HOUR
    assert time_limit(release, "quantize", 7 * HOUR).seconds == 24 * HOUR
    assert time_limit(with_policy(release, longest_stage_hours=2.0), "quantize", HOUR).seconds == 2 * HOUR


def test_where_nothing_is_planned_the_limit_is_fixed(release):
    assert time_limit(release, "quantize").seconds == 4 * HOUR
    assert resolve_request(load_release(DEMO)).time_limit.seconds == 4 * HOUR


def test_a_canary_step_may_bake_and_wait_for_a_person_as_long_as_its_policy_says(release):
    canary = release.policy.canary.model_copy(
        update={"maximum_bake_seconds": 10 * HOUR, "pause_deadline_seconds": 60 * HOUR}
    )
    limit = time_limit(with_policy(release, canary=canary), "canary", 30.0)
    assert min(limit.seconds, limit.stall_seconds, limit.longest_seconds) > 70 * HOUR


def test_a_build_may_take_as_long_as_its_tool_and_a_load_test_as_long_as_its_windows(release):
    target = release.targets[0]
    build = target.build.model_copy(update={"time_limit_minutes": 60 * 100.0})
    slow = release.model_copy(update={"targets": (target.model_copy(update={"build": build}),)})
    assert time_limit(slow, "build", 60.0).stall_seconds > 100 * HOUR
    workload = release.workload.model_copy(update={"duration_seconds": 20 * HOUR})
    assert time_limit(release.model_copy(update={"workload": workload}), "load_test").seconds > 100 * HOUR


def test_plan_warns_of_a_step_that_is_expected_to_take_more_than_half_its_limit(release):
    costs = {("quantize", "int8"): StepCost(seconds=13 * HOUR), ("accuracy", "int8"): StepCost(seconds=11 * HOUR)}
    costs["download", ""] = StepCost()
    (warning,) = time_warnings(release, costs)
    assert "quantize int8 is expected to take 13 h and is stopped after 24 h" in warning
