from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowSkipException, ParamValidationError
from llm_pipeline_airflow.deployment_dags import GuardOperator, RollBackOperator, deployment_dags
from llm_pipeline_airflow.faults import Refused
from place_here import serve

from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.operations.switching import end_here
from llm_pipeline.store import open_store
from llm_pipeline.store.place_state import Pointer, WayBack, edit_place

WORKERS = "workers: { targets: { cpu-b: { queue: on-b, pool: gpus-b } } }\n"
FORM = {"model": "demo/tiny", "target": "cpu-a", "release": "", "reason": "it answers nonsense"}


@pytest.fixture
def deployment(project) -> Path:
    return project.config.parents[1] / "deployments" / "here.yaml"


@pytest.fixture
def dags(project):
    def made():
        (guard,) = deployment_dags("guard", (project.config.parent,)).values()
        (rollback,) = deployment_dags("rollback", (project.config.parent,)).values()
        return guard, rollback

    return made


class Run:
    run_id = "manual__1"
    triggering_user_name = "anna"


def command(target: str = "cpu-a", **form: str) -> list[str]:
    operator = RollBackOperator(task_id="t", deployment_file="here.yaml", subject=target)
    return list(operator.command({"params": FORM | form, "dag_run": Run()}))


def test_the_guard_looks_every_minute_unless_the_deployment_says_otherwise(dags, deployment):
    guard, _ = dags()
    assert guard.timetable.expression == "* * * * *"
    assert (guard.max_active_runs, guard.catchup) == (1, False)
    assert guard.dagrun_timeout.total_seconds() <= 900  # a host that is gone keeps it from no other for long
    assert guard.get_task("guard").retries == 0
    deployment.write_text(deployment.read_text() + "guard_schedule: null\n")
    assert dags()[0].schedule is None


def test_each_target_is_guarded_and_taken_back_on_the_host_of_its_servers(dags, deployment):
    deployment.write_text(deployment.read_text() + WORKERS)
    for dag in dags():
        (task,) = dag.tasks
        assert task.expand_input.value == {"subject": ["cpu-a", "cpu-b"]}
        assert task.partial_kwargs["executor_config"] == {"llm_pipeline": [{}, {"queue": "on-b"}]}
        assert task.partial_kwargs["priority_weight"] > 100


def test_the_form_takes_only_what_there_is(dags):
    form = dags()[1].params
    assert form.get_param("model").value == "demo/tiny"  # the only one
    assert form.get_param("target").schema["enum"] == ["cpu-a", "cpu-b"]
    for name, wrong in {
        "target": "cpu-c",
        "reason": "",
        "release": "--production",
        "model": "x/y",
    }.items():
        with pytest.raises(ParamValidationError):
            form.get_param(name).resolve(wrong)
    form.get_param("release").resolve("tiny-01234567")


def test_the_form_becomes_a_command_for_the_one_target(dags):
    asked = ["rollback", "demo/tiny", "cpu-a", "--reason=it answers nonsense", "--by=anna"]
    assert command() == asked
    assert command(release="tiny-1") == [*asked, "--from=tiny-1"]
    with pytest.raises(AirflowSkipException):
        command("cpu-b")


def test_the_guard_runs_as_a_process_and_says_little(deployment, caplog):
    with caplog.at_level(logging.INFO):
        GuardOperator(task_id="guard", deployment_file=str(deployment), subject="cpu-a").execute({})
    where, done = (record.message for record in caplog.records if "deployment_dags" in record.name)
    assert where.startswith("| deployment here, store file://")
    assert done == "| nothing to do"


def test_the_log_of_a_rollback_ends_with_what_serves_and_a_refusal_is_not_tried_again(deployment, caplog):
    store, now = open_store(load_yaml(deployment, Deployment).store), datetime.now(UTC)
    repository = ArtifactRef(kind="model_repository", digest="2" * 64)
    serves = Pointer(release_id="r2", repository=repository, slot="green", recipe="none", promoted_at=now)
    serve(store, "demo/tiny", "cpu-a", serves)
    left = WayBack(left="r3", to="r2", by="anna", asked_at=now, repository=repository, done=True)
    edit_place(store, "cpu-a", lambda state: state.model_copy(update={"way_back": left}))
    operator = RollBackOperator(task_id="roll_back", deployment_file=str(deployment), subject="cpu-a")
    with caplog.at_level(logging.INFO):
        operator.execute({"params": FORM | {"release": ""}, "dag_run": Run()})
        assert caplog.records[-1].message == "| demo/tiny on cpu-a: r2 serves in green"
        with pytest.raises(Refused, match="was refused"):
            operator.execute({"params": FORM | {"release": "r9"}, "dag_run": Run()})
    assert "r2 serves on cpu-a, and r9 is not on trial" in caplog.text
    end_here(load_yaml(deployment, Deployment), "cpu-a")  # its router, which a rollback starts


def test_what_a_command_writes_that_is_no_text_hides_nothing_of_how_it_ended(caplog):
    operator = GuardOperator(task_id="guard", deployment_file="here.yaml", subject="cpu-a")
    written = "import os; os.write(1, b'caf\\xe9\\ncpu-a: rolled back\\n'); raise SystemExit(1)"
    with caplog.at_level(logging.INFO):
        assert operator._run([sys.executable, "-c", written], dict(os.environ)) == 1
    assert operator._last_line == "cpu-a: rolled back"
    assert "| caf" in caplog.text
