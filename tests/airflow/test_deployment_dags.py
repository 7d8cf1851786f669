"""The DAGs of a deployment: guard, rollback form, nightly verification, retention; and what all DAGs say."""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSkipException, ParamValidationError
from llm_pipeline_airflow.deployment_dags import FoundWrong, GuardOperator, RollBackOperator, VerifyOperator
from llm_pipeline_airflow.discovery import all_dags, dags_of
from llm_pipeline_airflow.task_endings import Refused, ReleaseNotifier
from place_here import SERVED, pointer, serve

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.operations.switching import end_here
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline.store.place_state import WayBack, edit_place

WORKERS = "workers: { targets: { cpu-b: { queue: on-b, pool: gpus-b } } }\n"
FORM = {"model": "demo/tiny", "target": "cpu-a", "release": "", "reason": "it answers nonsense"}
SINCE = datetime.now(UTC)
RUN = SimpleNamespace(run_id="manual__1", triggering_user_name="anna")


@pytest.fixture
def deployment(project) -> Path:
    return project.config.parents[1] / "deployments" / "here.yaml"


def made(project, kind: str) -> DAG:
    return dags_of((project.config.parent,))[f"{kind}__here"]


def serving(deployment: Path) -> ArtifactStore:
    """The deployment's store, which says that a release serves whose repository is gone."""
    store = open_store(load_yaml(deployment, Deployment).store)
    serve(store, "demo/tiny", "cpu-a", pointer("r2", slot="green"))
    return store


@pytest.mark.parametrize(
    ("kind", "key", "usual"),
    [("guard", "guard_schedule", "* * * * *"), ("verify", "verification_schedule", "17 3 * * *")],
)
def test_it_runs_by_the_clock_unless_the_deployment_says_otherwise(project, deployment, kind, key, usual):
    assert made(project, kind).timetable.expression == usual
    text = deployment.read_text()
    deployment.write_text(f"{text}{key}: '5 1 * * 0'\n")
    assert made(project, kind).timetable.expression == "5 1 * * 0"
    deployment.write_text(f"{text}{key}: null\n")
    assert made(project, kind).schedule is None


@pytest.mark.parametrize("kind", ["guard", "rollback", "verify"])
def test_each_target_is_looked_after_on_the_host_of_its_servers(project, deployment, kind):
    deployment.write_text(deployment.read_text() + WORKERS)
    (task,) = made(project, kind).tasks
    assert task.expand_input.value == {"subject": ["cpu-a", "cpu-b"]}
    assert task.partial_kwargs["executor_config"] == {"llm_pipeline": [{}, {"queue": "on-b"}]}
    assert (task.partial_kwargs["priority_weight"] > 100) is (kind != "verify"), "it waits behind urgent work"


def test_a_guard_whose_host_is_gone_keeps_others_waiting_for_minutes_only(project):
    guard = made(project, "guard")
    assert guard.dagrun_timeout.total_seconds() <= 900
    assert guard.get_task("guard").retries == 0
    assert guard.get_task("guard").task_type == "GuardOperator", "by which alert rules know it"


def test_the_form_takes_only_what_there_is(project):
    form = made(project, "rollback").params
    assert form.get_param("model").value == "demo/tiny"  # the only one
    assert form.get_param("target").schema["enum"] == ["cpu-a", "cpu-b"]
    for name, wrong in {"target": "cpu-c", "reason": "", "release": "--production", "model": "x/y"}.items():
        with pytest.raises(ParamValidationError):
            form.get_param(name).resolve(wrong)
    form.get_param("release").resolve("tiny-01234567")


def test_the_form_becomes_a_command_for_the_one_target():
    def command(target: str = "cpu-a", **form: str) -> list[str]:
        operator = RollBackOperator(task_id="t", deployment_file="here.yaml", subject=target)
        return list(operator.command({"params": FORM | form, "dag_run": RUN}))

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
    store = serving(deployment)
    left = WayBack(left="r3", to="r2", by="anna", asked_at=SINCE, repository=SERVED, done=True)
    edit_place(store, "cpu-a", lambda state: state.model_copy(update={"way_back": left}))
    operator = RollBackOperator(task_id="roll_back", deployment_file=str(deployment), subject="cpu-a")
    with caplog.at_level(logging.INFO):
        operator.execute({"params": FORM, "dag_run": RUN})
        assert caplog.records[-1].message == "| demo/tiny on cpu-a: r2 serves in green"
        with pytest.raises(Refused, match="was refused"):
            operator.execute({"params": FORM | {"release": "r9"}, "dag_run": RUN})
    assert "r2 serves on cpu-a, and r9 is not on trial" in caplog.text
    end_here(load_yaml(deployment, Deployment), "cpu-a")  # its router, which a rollback starts


def test_what_a_command_writes_that_is_no_text_hides_nothing_of_how_it_ended(caplog):
    operator = GuardOperator(task_id="guard", deployment_file="here.yaml", subject="cpu-a")
    written = "import os; os.write(1, b'caf\\xe9\\ncpu-a: rolled back\\n'); raise SystemExit(1)"
    with caplog.at_level(logging.INFO):
        assert operator._run([sys.executable, "-c", written], dict(os.environ)) == 1
    assert operator._last_line == "cpu-a: rolled back"
    assert "| caf" in caplog.text


def test_a_finding_fails_the_task_with_one_message_and_is_told_once(deployment, told):
    told.messages.clear()
    operator = VerifyOperator(task_id="verify", deployment_file=str(deployment), subject="cpu-a")
    operator.execute({})
    assert told.messages == [], "where nothing serves there is nothing wrong"
    serving(deployment)
    with pytest.raises(FoundWrong, match=r"production:demo/tiny/cpu-a: _COMPLETE\.json: missing") as caught:
        operator.execute({})
    assert "\n" not in str(caught.value)
    assert "error" not in str(caught.value).partition(":")[0]
    names = {"task_id": "verify", "dag_id": "verify__here", "run_id": "run", "try_number": 1, "map_index": 0}
    context = {"task": operator, "ti": SimpleNamespace(**names, log_url=""), "exception": caught.value}
    ReleaseNotifier("failed").notify(context)
    (message,) = told.messages
    assert (message["title"], message["type"]) == ("Verification of cpu-a in here: something is wrong", "failure")
    assert "_COMPLETE.json" in message["message"]
    ReleaseNotifier("failed").notify({**context, "exception": ConfigError("no such place")})
    assert told.titles[1:] == ["verify cpu-a of here: failed"]  # what is no finding is told as ever


def test_a_deployment_has_one_dag_of_a_kind_however_many_releases_name_it(project):
    project.config.with_name("other.yaml").write_text(project.config.read_text())
    of_deployments = {name for name in dags_of((project.config.parent,)) if not name.startswith("release__")}
    assert of_deployments == {f"{kind}__here" for kind in ("guard", "retention", "rollback", "verify")}


def test_retention_runs_by_hand_and_deletes_nothing_unless_the_deployment_says_otherwise(project, deployment):
    dag = made(project, "retention")
    assert (dag.schedule, dag.params["delete"]) == (None, False)
    rules = "retention: { schedule: '30 3 * * *', delete: true, keep_releases: 3 }\n"
    deployment.write_text(deployment.read_text() + rules)
    dag = made(project, "retention")
    assert (dag.timetable.expression, dag.params["delete"]) == ("30 3 * * *", True)
    assert "newest **3**" in dag.doc_md


def test_the_report_of_a_retention_is_a_table_in_the_log(project, caplog):
    store = open_store(f"file://{project.root}/store")
    store.write_document("releases/tiny-00000001-00000001/results/left.json", {}, None)
    for delete in (False, True):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            made(project, "retention").get_task("collect").execute({"params": {"delete": delete}})
        assert "release  tiny-00000001-00000001        its removal was interrupted" in caplog.text
        assert bool(store.list_documents("releases")) is not delete
        assert ("nothing was changed" in caplog.text) is not delete


def test_every_dag_has_the_owner_of_its_deployment_and_tags_to_filter_by(project, deployment, monkeypatch):
    monkeypatch.setenv("AIRFLOW__LLM_PIPELINE__RELEASES", str(project.config.parent))
    deployment.write_text(deployment.read_text() + "owner: platform team\n")
    from airflow.serialization.serialized_objects import DagSerialization

    dags = all_dags(str(project.config))
    assert sorted(dags) == ["guard__here", "release__tiny", "retention__here", "rollback__here", "verify__here"]
    for dag_id, dag in dags.items():
        kind = dag_id.partition("__")[0]
        assert DagSerialization.to_dict(dag)["dag"]["dag_id"] == dag_id
        assert (dag.max_active_runs, dag.catchup) == (1, False), dag_id
        assert dag.owner == "platform team", dag_id
        assert dag.tags == {
            f"llm-{kind}", "model:demo/tiny", "deployment:here", "target:cpu-a", "target:cpu-b", "engine:openvino_cpu",
        }  # fmt: skip
