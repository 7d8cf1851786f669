from __future__ import annotations

import pytest
from airflow.sdk import DAG
from llm_pipeline_airflow.dag_factory import release_dag


@pytest.fixture
def dag(project) -> DAG:
    return release_dag(project.config)


def upstream(dag: DAG, task_id: str) -> set[str]:
    return set(dag.get_task(task_id).upstream_task_ids)


def test_a_release_config_runs_once_at_a_time_and_is_never_caught_up(dag):
    assert dag.max_active_runs == 1
    assert dag.catchup is False


def test_the_next_recipe_waits_for_the_verdict_on_the_cheaper_one_whatever_it_is(dag):
    assert upstream(dag, "recipes_2.quantize") == {"recipes_1.accuracy", "baseline_gate"}
    assert dag.get_task("recipes_2.quantize").trigger_rule == "all_done"


def test_every_recipe_is_tried_side_by_side_when_that_is_wanted(project):
    project.config.write_text(project.config.read_text() + "ladder: { strategy: every }\n")
    dag = release_dag(project.config)
    assert dag.task_group.get_task_group_dict()["recipes"]._expand_input.value == {"recipe": ["small", "large"]}
    assert upstream(dag, "recipes.quantize") == {"download"}
    assert upstream(dag, "targets.choose") == {"recipes.accuracy", "baseline_gate"}


def test_a_person_is_asked_before_the_steps_that_the_policy_names(project):
    policy = project.root / "configs/policies/quick.yaml"
    asks = "steps_percent: [5, 100], approve_before_percent: [5, 100], pause_deadline_seconds: 7200"
    policy.write_text(policy.read_text().replace("steps_percent: [5, 100]", asks))
    dag = release_dag(project.config)
    assert upstream(dag, "promotion_1.approve_100") == {"promotion_1.canary_5"}
    assert upstream(dag, "promotion_1.canary_100") == {"promotion_1.approve_100"}
    assert upstream(dag, "promotion_2.approve_5") == {"approve", "promotion_1.rollback"}
    first, step = dag.get_task("promotion_2.approve_5"), dag.get_task("promotion_2.canary_5")
    assert (first.trigger_rule, step.trigger_rule) == ("all_done", "all_success")
    assert (first.defaults, first.response_timeout.total_seconds()) == (["Reject"], 7200)
    assert dag.get_task("promotion_1.rollback").canary_steps == ("promotion_1.canary_5", "promotion_1.canary_100")


def test_rollback_and_report_always_run_and_never_hide_a_failure(dag):
    for task_id in ("promotion_1.rollback", "report", "targets.staging_down"):
        task = dag.get_task(task_id)
        assert task.is_teardown
        assert not task.on_failure_fail_dagrun


def test_only_the_promotions_decide_about_the_run(dag):
    leaves = [
        task.task_id
        for task in dag.tasks
        if not task.is_teardown and all(dag.get_task(below).is_teardown for below in task.downstream_task_ids)
    ]
    assert leaves == ["promotion_1.settle", "promotion_2.settle"]


def test_every_task_says_what_it_does(dag):
    for task in dag.tasks:
        assert task.doc_md
        assert task.task_display_name != task.task_id


def test_the_graph_is_seven_boxes_in_which_tasks_keep_their_names(dag):
    boxes = ["preparation", "recipes", "targets", "approve", "promotion", "report", "give_back"]
    assert list(dag.task_group.children) == boxes
    groups = dag.task_group.get_task_group_dict()
    assert list(groups["preparation"].children)[::7] == ["claim", "baseline_gate"]
    assert list(groups["recipes"].children) == ["recipes_1", "recipes_2"]
    assert groups["promotion"].group_display_name == "Promotion"
    assert "promotion_2.settle" in dag.task_dict


def test_the_dag_can_be_serialized_with_its_retry_policy(dag):
    from airflow.serialization.serialized_objects import DagSerialization

    assert DagSerialization.to_dict(dag)["dag"]["dag_id"] == "release__tiny"


def test_nothing_is_asked_of_the_hub_before_it_is_this_runs_turn(dag):
    claim = dag.get_task("claim")
    assert claim.is_setup
    assert claim.mode == "reschedule"  # no worker while it waits
    assert upstream(dag, "claim") == set()
    assert upstream(dag, "resolve") == {"claim"}


def test_the_turn_is_given_back_last_whatever_happened(dag):
    give_back = dag.get_task("give_back")
    assert give_back.is_teardown
    assert give_back.on_failure_fail_dagrun, "it fails where a person ended the run"
    assert upstream(dag, "give_back") == {"claim", "report"}
    others = {task.task_id for task in dag.tasks} - {"give_back"}
    assert set(give_back.get_flat_relative_ids(upstream=True)) == others
    assert upstream(dag, "report") == {
        "recipes_1.quantize",  # may outlive a baseline that failed
        "targets.staging_down",
        "promotion_1.rollback",
        "promotion_2.rollback",
    }


@pytest.mark.parametrize(
    "cleared", ["download", "recipes_2.accuracy", "targets.load_test", "promotion_1.canary_5", "promotion_2.canary_100"]
)
def test_whatever_is_cleared_the_turn_is_taken_again(dag, cleared):
    from airflow.serialization.serialized_objects import DagSerialization

    serialized = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    subset = serialized.partial_subset(task_ids=[cleared], include_upstream=False, include_downstream=True)
    assert {"claim", "give_back"} <= set(subset.task_dict)
