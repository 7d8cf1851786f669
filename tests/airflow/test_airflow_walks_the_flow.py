"""Airflow, with its own trigger rules, setups and skips, ends every task of a release as the flow's rules say."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta

import pytest
from flow_cases import CASES, RECIPES, Case, walk
from llm_pipeline_airflow.approvals import DecisionOperator
from llm_pipeline_airflow.dag_factory import release_dag

from llm_pipeline.release.loading import load_release
from llm_pipeline.release.step import Ending
from llm_pipeline.release.tasks import release_tasks

pytestmark = [pytest.mark.slow, pytest.mark.thorough]  # test_operators.py has the fast ones

STATES = {
    "success": Ending.GOOD,
    "failed": Ending.FAILED,
    "skipped": Ending.SKIPPED,
    "upstream_failed": Ending.NOT_REACHED,
}
WALKED = (
    "one target refused and the other's canary", "all well", "load_test refuses cpu-a",
    "canary cpu-a:5 refused", "baseline refused", "both refused",
    "none can be quantized", "production declined", "one target refused and the other declined",
    "error in download", "error in build", "error in staging",
    "error in canary", "error in rollback", "transient errors",
)  # fmt: skip


@pytest.fixture(scope="module")
def release(tmp_path_factory, make_project, airflow_database, in_process):
    project = make_project(tmp_path_factory.mktemp("release"), approval=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__LLM_PIPELINE__RELEASES", str(project.config.parent))
        patch.setattr("llm_pipeline_airflow.task_endings._FIRST_DELAY", timedelta(0))
        yield project


@pytest.fixture
def answers(monkeypatch):
    """Answers questions at once, as the form would; the real operator acts on the answer."""

    def set_answers(case: Case) -> None:
        def ask(operator, context, _awaited) -> object:
            chosen = operator.REJECT if operator.task_id in case.declined else operator.APPROVE
            event = {
                "chosen_options": [chosen],
                "params_input": {},
                "responded_at": datetime.now(UTC),
                "responded_by_user": None,
            }
            return operator.execute_complete(context, event)

        monkeypatch.setattr(DecisionOperator, "ask", ask)

    return set_answers


@pytest.mark.parametrize("name", WALKED)
def test_every_task_ends_as_the_rules_say(release, answers, name):
    case = CASES[name]
    release.script(**case.stages)
    shutil.rmtree(release.root / "store", ignore_errors=True)
    for tried in (release.root / "work").glob("tried.*"):
        tried.unlink()
    answers(case)
    run = release_dag(release.config).test()
    seen = {(ti.task_id, max(0, ti.map_index)): STATES[str(ti.state)] for ti in run.get_task_instances()}
    tasks = release_tasks(load_release(release.config).release, RECIPES)
    walked = walk(tasks, case)
    expected = {
        (task.id, number): walked.endings.one(task.id, item) for task in tasks for number, item in enumerate(task.items)
    }
    beside = {  # where workers are free, the first recipe is quantized while the baseline is scored
        key for key, ending in expected.items() if key[0] == "recipes_1.quantize" and ending is Ending.SKIPPED
    }
    beside |= {  # a canary that was refused ends as one that failed: its rollback looks whether traffic was moved
        key for key, ending in expected.items() if key[0].endswith(".rollback") and ending is Ending.SKIPPED
        and seen[key] is Ending.GOOD and seen[key[0].replace("rollback", "canary_5"), key[1]] is Ending.FAILED
    }  # fmt: skip
    assert {key: seen[key] for key in seen if key not in beside} == {
        key: expected[key] for key in expected if key not in beside
    }
