"""The DAG draws the flow, and nothing else: the same tasks, the same edges, the same rules."""

from __future__ import annotations

import pytest
from airflow.sdk import TriggerRule
from llm_pipeline_airflow.dag_factory import release_dag

from llm_pipeline.planning.memory import climbing_order
from llm_pipeline.release.loading import load_release
from llm_pipeline.release.step import Effect, Start
from llm_pipeline.release.tasks import release_tasks

ASKS = "steps_percent: [5, 33.5, 100], approve_before_percent: [5, 100]"
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


@pytest.mark.parametrize("kind", [*CONFIGS, "asks"])
def test_tasks_edges_and_rules_of_the_dag_are_those_of_the_flow(project, kind):
    text = project.config.read_text()
    for before, after in CONFIGS.get(kind, {}).items():
        text = text.replace(before, after)
    project.config.write_text(text)
    if kind == "asks":
        policy = project.root / "configs/policies/quick.yaml"
        policy.write_text(policy.read_text().replace("steps_percent: [5, 100]", ASKS))
    loaded, dag = load_release(project.config), release_dag(project.config)
    tasks = release_tasks(loaded.release, climbing_order(loaded.release))
    assert [task.id for task in tasks] == list(dag.task_dict)
    for task in tasks:
        drawn = dag.get_task(task.id)
        setups = {task_id for task_id in drawn.upstream_task_ids if dag.get_task(task_id).is_setup}
        assert drawn.upstream_task_ids - setups == set(task.after) - setups, task.id
        assert drawn.is_teardown is not task.step.decides, task.id
        assert getattr(drawn, "any_of", ()) == (task.after if task.start is Start.ANY_GOOD else ())
        if task.step.decides:
            assert drawn.trigger_rule == RULES[task.start], task.id
        elif task.step.effect is not Effect.PRODUCTION:
            assert set(task.tears_down) <= setups, task.id
        group = drawn.get_closest_mapped_task_group()
        assert (task.lane.id if task.lane else None) == (group.group_id if group else None)
        if group:
            assert list(group._expand_input.value.values()) == [list(task.items)]


def test_the_order_in_which_the_tasks_are_stated_has_everything_behind_what_it_comes_after(project):
    release = load_release(project.config).release
    known: set[str] = set()
    for task in release_tasks(release, climbing_order(release)):
        assert known.issuperset((*task.after, *task.tears_down, *task.offered))
        known.add(task.id)
