"""How a release is started by hand: what one run has otherwise than its config, and what its first tasks refuse."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import RetryAction
from airflow.sdk.exceptions import AirflowSkipException
from llm_pipeline_airflow.dag_factory import release_dag
from llm_pipeline_airflow.operators import ResolveOperator
from llm_pipeline_airflow.task_endings import Refused, task_defaults

from llm_pipeline.base.errors import ConfigError, InternalError, StageCrashed, Transient
from llm_pipeline.config.overrides import Overrides
from llm_pipeline.release.claim import read_claim
from llm_pipeline.release.loading import load_release
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.store import open_store
from llm_pipeline.store.place_state import claim_place, read_place

RELEASE = "tiny-01234567-00000000"


def begin(project, **params: Any) -> bool:
    """Look for the first time whether it is the turn of a run with such parameters."""
    return release_dag(project.config).get_task("claim").poke({"task_reschedule_count": 0, "params": params})


def takes_nobodys_turn(project) -> bool:
    return read_claim(open_store(f"file://{project.root}/store"), "demo/tiny").everyone == ()


def test_the_form_offers_what_the_config_has_and_says_what_replacing_does(project):
    params = release_dag(project.config).params
    assert (params["recipes"], params["targets"]) == (["small", "large"], ["cpu-a", "cpu-b"])
    assert (params["revision"], params["strategy"]) == (None, "climb")
    assert params.get_param("targets").schema["examples"] == ["cpu-a", "cpu-b"]
    assert (params["replace"], params["dry_run"]) == (False, False)
    assert "Take cpu-a, cpu-b over" in params.get_param("replace").description


def test_a_ladder_that_is_drawn_side_by_side_is_not_offered_to_be_climbed(project):
    project.add("releases/tiny", "ladder: { strategy: every }\n")
    assert "strategy" not in release_dag(project.config).params
    with pytest.raises(Refused, match="tries all recipes at once"):
        begin(project, strategy="climb")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"recipes": ["small", "tiny"]}, "tiny is not among the recipes.*a run may have some of small, large"),
        ({"targets": []}, "none is left of the targets.*a run may have some of cpu-a, cpu-b"),
        ({"targets": "cpu-a"}, "targets: Input should be a valid tuple"),
        ({"strategy": "jump"}, "strategy: Input should be 'climb' or 'every'"),
        ({"revision": "-x"}, "revision: String should match pattern"),
    ],
)
def test_a_wrong_value_is_refused_before_the_run_waits_for_its_turn(project, asked, told):
    with pytest.raises(Refused, match=f"(?s){told}"):
        begin(project, **asked)
    assert takes_nobodys_turn(project)
    with pytest.raises(ConfigError, match=f"(?s){told}"):
        load_release(project.config, Overrides.of(asked))


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_release_that_cannot_work_fails_with_the_plans_error_before_it_waits_for_a_turn(without_hub, dry_run):
    without_hub.edit("targets/cpu-a", "openvino_cpu", "tensorrt_llm_llmapi")
    with pytest.raises(Refused, match="target cpu-a: engine tensorrt_llm_llmapi does not run on a CPU"):
        begin(without_hub, dry_run=dry_run)
    assert takes_nobodys_turn(without_hub)


def test_a_dry_run_shows_the_plan_and_takes_nobodys_turn(without_hub, caplog):
    with pytest.raises(AirflowSkipException, match="nothing was released"):
        begin(without_hub, dry_run=True)
    assert "the plan:" in caplog.text
    assert "cpu-b" in caplog.text
    assert takes_nobodys_turn(without_hub)


def test_a_run_that_replaces_hands_over_what_others_hold_and_reserves_nothing(project):
    store = open_store(load_release(project.config).deployment.store)
    claim_place(store, "cpu-a", "demo/other", by="other-1")

    def request(*, replace: bool) -> None:
        run = SimpleNamespace(dag_id="release__tiny", run_type="manual")
        context: Any = {"params": {"revision": None, "replace": replace}, "dag_run": run, "run_id": "manual-1"}
        ResolveOperator(task_id="resolve", config_path=str(project.config)).request(context)

    request(replace=False)
    assert read_place(store, "cpu-a") == claim_place(store, "cpu-a", "demo/other", by="other-2")
    request(replace=True)
    holder = read_place(store, "cpu-a")
    told = (holder.model_id, holder.next_model, holder.next_by)
    assert told == ("demo/other", "demo/tiny", "run release__tiny/manual-1")
    assert read_place(store, "cpu-b").model_id == ""


@pytest.mark.thorough
def test_a_run_of_one_recipe_and_one_target_is_promoted_there_and_touches_no_other(
    project, airflow_database, in_process, monkeypatch
):
    monkeypatch.setenv("AIRFLOW__LLM_PIPELINE__RELEASES", str(project.config.parent))
    ended = release_dag(project.config).test(run_conf={"recipes": ["large"], "targets": ["cpu-b"]})
    assert str(ended.state) == "success"
    tasks = {(ti.task_id, max(0, ti.map_index)): str(ti.state) for ti in ended.get_task_instances()}
    assert {tasks[f"recipes_1.{name}", 0] for name in ("quantize", "accuracy")} == {"skipped"}
    assert tasks["recipes_2.accuracy", 0] == "success"
    assert (tasks["targets.choose", 0], tasks["targets.choose", 1]) == ("skipped", "success")
    assert (tasks["promotion_1.settle", 0], tasks["promotion_2.settle", 0]) == ("skipped", "success")
    assert "failed" not in tasks.values()
    record = ReleaseProgress.open(load_release(project.config).deployment, RELEASE).record
    assert record.overrides == Overrides(recipes=("large",), targets=("cpu-b",))
    assert record.overrides_in_words == "recipes large; targets cpu-b, by dag_test"


@pytest.mark.parametrize(
    ("raised", "action"),
    [
        (Transient("throttled"), RetryAction.DEFAULT),
        (StageCrashed("killed"), RetryAction.DEFAULT),
        (ConfigError("wrong"), RetryAction.FAIL),
        (InternalError("a fault"), RetryAction.FAIL),
        (Refused("a person said no"), RetryAction.FAIL),
        (OSError(5, "Input/output error"), RetryAction.DEFAULT),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value.value,
)
def test_a_failure_is_tried_again_only_if_that_may_help(raised: BaseException, action: RetryAction) -> None:
    assert task_defaults("us")["retry_policy"].evaluate(raised, 1, 4).action is action
