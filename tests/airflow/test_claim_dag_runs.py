"""DAG runs and the claim on their model: real operators in short DAGs, stages that do no work."""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime

import pytest
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.models.dagrun import DagRun
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, chain
from airflow.sdk.exceptions import AirflowSkipException
from llm_pipeline_airflow.claim import ClaimSensor, GiveBackOperator
from llm_pipeline_airflow.operators import ResolveOperator, StageOperator
from waiting import until

from llm_pipeline.release.claim import AirflowRun, Claimant, LocalProcess, ReleaseClaim, free_claim, read_claim
from llm_pipeline.release.loading import load_release
from llm_pipeline.store import ArtifactStore, open_store

pytestmark = pytest.mark.slow

MODEL = "demo/tiny"


@pytest.fixture
def store(project) -> ArtifactStore:
    return open_store(f"file://{project.root}/store")


def claim_of(project, store: ArtifactStore, party: AirflowRun | LocalProcess) -> ReleaseClaim:
    config = load_release(project.config).config.model_copy(update={"name": "newer"})
    return ReleaseClaim(store, MODEL, Claimant.of(config, party))


def short_release(config: str) -> DAG:
    with DAG("short_release", schedule=None) as dag:
        claim = ClaimSensor(task_id="claim", config_path=config)
        resolve = ResolveOperator(task_id="resolve", config_path=config)
        staging = StageOperator(task_id="download", stage="download", config_path=config)
        down = StageOperator(task_id="down", stage="staging_down", subject="cpu-a", config_path=config)
        report = StageOperator(task_id="report", stage="report", config_path=config).as_teardown()
        following = StageOperator(task_id="baseline", stage="baseline", config_path=config)
        give_back = GiveBackOperator(task_id="give_back", config_path=config).as_teardown(setups=claim)
        chain(claim, resolve, staging, following, down.as_teardown(setups=staging), report, give_back)
    return dag


def run_of(dag: DAG) -> DagRun:
    """A run of a DAG that is in no file."""
    bag = DagBag(dag_folder=os.devnull)
    bag.bag_dag(dag)
    manager = DagBundlesManager()
    manager.sync_bundles_to_db()
    sync_bag_to_db(bag, "dags-folder", None)
    return dag.test()


def states(run: DagRun) -> dict[str, str]:
    return {ti.task_id: str(ti.state) for ti in run.get_task_instances()}


def test_a_run_that_lost_its_turn_starts_no_stage_and_takes_down_only_what_is_its_own(project, store, airflow_database):
    project.script(download={"seconds": 1.5, "file": str(project.root / "started")})
    seen: list[object] = []

    def newer() -> None:
        until((project.root / "started").exists)
        free_claim(store, MODEL)
        seen.append(claim_of(project, store, LocalProcess.here()).ask())

    thread = threading.Thread(target=newer)
    thread.start()
    run = states(run_of(short_release(str(project.config))))
    thread.join(timeout=300)

    assert (run["download"], run["baseline"]) == ("success", "failed")
    assert [*seen, run["down"]] == [None, "skipped"]
    assert (run["report"], run["give_back"]) == ("success", "success")
    assert read_claim(store, MODEL).holder.release == "newer"


def test_the_claim_of_a_run_that_has_ended_is_taken_over(project, store, airflow_database, caplog):
    with DAG("ended", schedule=None) as ended:
        EmptyOperator(task_id="nothing")
    run = run_of(ended)
    claim_of(project, store, AirflowRun(airflow="another", dag_id=run.dag_id, run_id=run.run_id)).ask()

    with DAG("begins", schedule=None) as begins:
        config = str(project.config)
        claim = ClaimSensor(task_id="claim", config_path=config)
        GiveBackOperator(task_id="give_back", config_path=config).as_teardown(setups=claim)
    assert run_of(begins).state == "success"
    assert f"(DAG ended, run {run.run_id}) no longer counts: its DAG run is over" in caplog.text
    assert read_claim(store, MODEL).everyone == ()


def test_a_run_with_nothing_to_release_takes_nobodys_turn(project, store, monkeypatch):
    def nothing_new(_loaded, _context):
        raise AirflowSkipException("nothing new")

    monkeypatch.setattr("llm_pipeline_airflow.claim.revision_of_run", nothing_new)
    with pytest.raises(AirflowSkipException):
        ClaimSensor(task_id="claim", config_path=str(project.config)).poke({"task_reschedule_count": 0})
    assert read_claim(store, MODEL).everyone == ()


def test_a_release_that_waits_for_long_looks_rarely(project):
    sensor = ClaimSensor(task_id="claim", config_path=str(project.config))
    started = datetime.now(UTC)
    waits = [sensor._get_next_poke_interval(started, lambda seconds=seconds: seconds, 1) for seconds in (1, 3600)]
    assert waits[0] <= 40
    assert waits[1] == 120
