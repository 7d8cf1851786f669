"""The DAG of a release draws the flow, and nothing else: the same tasks, the same edges, the same rules."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG, TriggerRule
from airflow.serialization.serialized_objects import DagSerialization
from llm_pipeline_airflow.dag_factory import release_dag

from llm_pipeline.planning.memory import climbing_order
from llm_pipeline.release.loading import load_release
from llm_pipeline.release.step import Effect, Kind, Start
from llm_pipeline.release.tasks import release_tasks

STEPS = "steps_percent: [5, 100]"
RULES = {
    Start.ALL_GOOD: TriggerRule.ALL_SUCCESS,
    Start.ANY_GOOD: TriggerRule.ALL_DONE,
    Start.ALWAYS: TriggerRule.ALL_DONE,
}
CONFIGS = {
    "plain": {},
    "every": {"approval: {": "ladder: { strategy: every }\napproval: {"},
    "cost": {"approval: {": "ladder: { objective: cost }\napproval: {"},
    "one_target": {"[cpu-a, cpu-b]": "[cpu-a]"},
}


@pytest.fixture
def dag(project) -> DAG:
    return release_dag(project.config)


@pytest.mark.parametrize("kind", [*CONFIGS, "asks"])
def test_tasks_edges_and_rules_of_the_dag_are_those_of_the_flow(project, kind):
    text = project.config.read_text()
    for before, after in CONFIGS.get(kind, {}).items():
        text = text.replace(before, after)
    project.config.write_text(text)
    if kind == "asks":
        project.edit("policies/quick", STEPS, "steps_percent: [5, 33.5, 100], approve_before_percent: [5, 100]")
    loaded, dag = load_release(project.config), release_dag(project.config)
    tasks = release_tasks(loaded.release, climbing_order(loaded.release))
    assert [task.id for task in tasks] == list(dag.task_dict)
    known: set[str] = set()
    for task in tasks:
        assert known.issuperset((*task.after, *task.tears_down, *task.offered)), "each is behind what it comes after"
        known.add(task.id)
        drawn = dag.get_task(task.id)
        setups = {task_id for task_id in drawn.upstream_task_ids if dag.get_task(task_id).is_setup}
        assert drawn.upstream_task_ids - setups == set(task.after) - setups, task.id
        assert drawn.is_teardown is not task.step.decides, task.id
        assert task.step.kind is Kind.CLAIM or drawn.flow_task == task, "by which it asks whether it may begin"
        assert drawn.doc_md
        assert drawn.task_display_name != drawn.task_id
        if task.step.decides:
            assert drawn.trigger_rule == RULES[task.start], task.id
        else:  # what clears up hides no failure; giving the turn back fails where a person ended the run
            assert drawn.on_failure_fail_dagrun is (task.step.kind is Kind.CLAIM), task.id
            assert task.step.effect is Effect.PRODUCTION or set(task.tears_down) <= setups, task.id
        group = drawn.get_closest_mapped_task_group()
        assert (task.lane.id if task.lane else None) == (group.group_id if group else None)
        if group:
            assert list(group._expand_input.value.values()) == [list(task.items)]


def test_a_person_is_asked_before_the_steps_that_the_policy_names(project):
    asks = f"{STEPS}, approve_before_percent: [5, 100], pause_deadline_seconds: 7200"
    project.edit("policies/quick", STEPS, asks)
    dag = release_dag(project.config)
    first, step = dag.get_task("promotion_2.approve_5"), dag.get_task("promotion_2.canary_5")
    assert (first.trigger_rule, step.trigger_rule) == ("all_done", "all_success")
    assert (first.defaults, first.response_timeout.total_seconds()) == (["Reject"], 7200)
    assert dag.get_task("promotion_1.rollback").canary_steps == ("promotion_1.canary_5", "promotion_1.canary_100")


def test_the_graph_is_seven_boxes_in_which_tasks_keep_their_names(dag):
    boxes = ["preparation", "recipes", "targets", "approve", "promotion", "report", "give_back"]
    assert list(dag.task_group.children) == boxes
    groups = dag.task_group.get_task_group_dict()
    assert list(groups["preparation"].children)[::7] == ["claim", "baseline_gate"]
    assert list(groups["recipes"].children) == ["recipes_1", "recipes_2"]
    assert groups["promotion"].group_display_name == "Promotion"
    assert "promotion_2.settle" in dag.task_dict


def test_the_turn_is_taken_first_without_a_worker_and_given_back_last_whatever_happened(dag):
    claim, give_back = dag.get_task("claim"), dag.get_task("give_back")
    assert (claim.is_setup, claim.mode) == (True, "reschedule")
    assert (claim.upstream_task_ids, dag.get_task("resolve").upstream_task_ids) == (set(), {"claim"})
    assert give_back.upstream_task_ids == {"claim", "report"}
    others = {task.task_id for task in dag.tasks} - {"give_back"}
    assert set(give_back.get_flat_relative_ids(upstream=True)) == others
    assert "recipes_1.quantize" in dag.get_task("report").upstream_task_ids, "it may outlive a baseline that failed"


@pytest.mark.parametrize(
    "cleared", ["download", "recipes_2.accuracy", "targets.load_test", "promotion_1.canary_5", "promotion_2.canary_100"]
)
def test_whatever_is_cleared_the_turn_is_taken_again(dag, cleared):
    serialized = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    subset = serialized.partial_subset(task_ids=[cleared], include_upstream=False, include_downstream=True)
    assert {"claim", "give_back"} <= set(subset.task_dict)
