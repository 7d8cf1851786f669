"""One Airflow with all its services, and what only shows there: killed workers, killed tasks, logins, questions."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from place_here import pointer, serve
from real_airflow import Run
from waiting import until

from llm_pipeline.base import detached
from llm_pipeline.demo.local_airflow import AirflowClient
from llm_pipeline.operations.decisions import decide
from llm_pipeline.release.record import read_release_record
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.store import open_store
from llm_pipeline.store.place_state import read_place

pytestmark = pytest.mark.slow

DAG = "release__one_target"


@pytest.fixture(scope="module")
def release(real_airflow):
    return real_airflow.release


@pytest.fixture(scope="module")
def client(real_airflow) -> Iterator[AirflowClient]:
    with AirflowClient(real_airflow.access) as client:
        until(lambda: client.has_dag(DAG))
        client.unpause(DAG)
        yield client


def finish(
    run: Run, *, approve: bool, denied: tuple[str, ...] = (), elsewhere: Mapping[str, Callable[[], Any]] | None = None
) -> str:
    """Answer what is asked until the run has ended; its state.

    Args:
        run: The run.
        approve: The answer in Airflow's forms.
        denied: Tasks whose forms are denied.
        elsewhere: What answers the question of a task outside of Airflow.
    """
    outside = dict(elsewhere or {})

    def ended() -> bool:
        for task_id, index in run.client.pending_approvals(run.dag_id, run.run_id):
            if elsewhere and task_id in elsewhere:
                outside.pop(task_id, lambda: None)()
                continue
            yes = approve and task_id not in denied
            run.client.answer_approval(run.dag_id, run.run_id, task_id, map_index=index, approve=yes)
        return run.ended()

    until(ended, 900, look_seconds=2)
    return run.state


def note_of(run: Run) -> str:
    return run.client.call("GET", run.path)["note"]


def trigger(client: AirflowClient, dag_id: str) -> Run:
    return Run(client, dag_id, client.trigger(dag_id))


def forget_what_was_computed(release) -> None:
    shutil.rmtree(release.root / "store", ignore_errors=True)


def started(marker: Path) -> bool:
    return marker.exists() and marker.read_text() != ""


@pytest.fixture(scope="module")
def denied(client, release, tmp_path_factory) -> Run:
    """A run whose worker was killed while it quantized, and whose second canary step a person denied."""
    forget_what_was_computed(release)
    store = open_store(f"file://{release.root}/store")
    serve(store, "demo/tiny", "cpu-a", pointer("old"))
    marker, found_again = (tmp_path_factory.mktemp("marks") / name for name in ("started", "found again"))
    release.script(**{"quantize/small": {"until": str(found_again), "file": str(marker)}})
    run = trigger(client, DAG)
    until(lambda: started(marker))
    os.kill(run.details("recipes_1.quantize", 0)["pid"], signal.SIGKILL)
    until(
        lambda: (run.task("recipes_1.quantize", 0).tries, run.task("recipes_1.quantize", 0).state) == (2, "running"),
        look_seconds=1,
    )
    until(
        lambda: any(
            "the stage of an earlier attempt is still running" in line for line in run.log("recipes_1.quantize", 2, 0)
        )
    )
    found_again.touch()

    def approve_on_the_command_line() -> None:
        flow = ReleaseProgress(store, read_release_record(store, client.xcom(DAG, run.run_id, "resolve")))
        assert decide(flow, "approve", ["cpu-a"], approved=True, by="bob").counted

    ended = finish(
        run, approve=True, denied=("promotion_1.approve_100",), elsewhere={"approve": approve_on_the_command_line}
    )
    assert ended == "failed"
    assert marker.read_text().splitlines() == ["started"]
    return run


def test_a_killed_worker_finds_its_stage_again(denied):
    quantize = denied.task("recipes_1.quantize", 0)
    assert (quantize.state, quantize.tries) == ("success", 2)
    assert "WARNING a warning of the stage  subject=small" in denied.log("recipes_1.quantize", 2, 0)


def test_a_recipe_that_is_not_tried_says_why(denied):
    skipped = denied.details("recipes_2.quantize", 0)
    assert (skipped["state"], skipped["rendered_map_index"]) == ("skipped", "large · skipped")
    log = denied.log("recipes_2.quantize", 1, 0)
    assert any("large is skipped: a cheaper recipe passed (small)" in line for line in log)


def test_an_answer_on_the_command_line_ends_a_form_that_waits(denied, client):
    assert denied.task("approve").state == "success"
    form = client.call("GET", f"{denied.path}/taskInstances/approve/-1/hitlDetails")
    assert (form["response_received"], form["chosen_options"]) == (True, ["Approve"])
    assert any("approved by bob" in line for line in client.task_log(DAG, denied.run_id, "approve"))


def test_a_person_is_asked_between_two_steps_and_a_denial_rolls_the_canary_back(denied, client, release):
    states = {name: denied.task(f"promotion_1.{name}", 0).state for name in ("canary_5", "approve_100", "canary_100")}
    assert states == {"canary_5": "success", "approve_100": "failed", "canary_100": "upstream_failed"}
    assert denied.task("promotion_1.rollback", 0).state == "success"
    assert denied.details("promotion_1.approve_100", 0)["rendered_map_index"] == "cpu-a"
    log = denied.log("promotion_1.approve_100", 1, 0)
    assert sum("step 100 % of cpu-a: denied; the canary is rolled back" in line for line in log) == 1
    assert not any("Traceback" in line or "Task failed with exception" in line for line in log)
    store = open_store(f"file://{release.root}/store")
    asked = read_place(store, "cpu-a").approval(client.xcom(DAG, denied.run_id, "resolve"), 100)
    assert (asked.answer, asked.by) == ("denied", "admin")


def test_the_report_is_shown_to_who_may_read_the_dag_and_to_nobody_else(denied, real_airflow):
    url = real_airflow.access.url
    report = f"{url}/llm-pipeline/dags/{DAG}/runs/{denied.run_id}/report"
    assert httpx.get(report).status_code == 401
    assert httpx.get(f"{url}/llm-pipeline/releases").status_code == 401

    nobody = real_airflow.token("nobody")
    assert httpx.get(report, headers=nobody).status_code == 403
    assert "release__" in httpx.get(f"{url}/llm-pipeline/releases", headers=nobody).text

    admin = real_airflow.token("admin")
    unknown = httpx.get(report.replace(denied.run_id, "no-such-<run>"), headers=admin)
    assert unknown.status_code == 404
    assert "no-such-<run>" not in unknown.text
    assert httpx.get(report.replace(DAG, "no_such_dag"), headers=admin).status_code == 404


def test_a_reports_page_runs_no_script_and_the_releases_page_lists_it(denied, real_airflow):
    pages, admin = f"{real_airflow.access.url}/llm-pipeline", real_airflow.token("admin")
    report = httpx.get(f"{pages}/dags/{denied.dag_id}/runs/{denied.run_id}/report", headers=admin)
    assert report.status_code == 200
    assert "the report" in report.text
    assert "default-src 'none'" in report.headers["content-security-policy"]
    assert "script" not in report.headers["content-security-policy"]
    listed = httpx.get(f"{pages}/releases", headers=admin).text
    assert "one_target-01234567-00000000" in listed
    assert "<td>canary cpu-a:5</td>" in listed


def test_a_run_that_a_person_marked_failed_is_failed_also_while_it_was_queued_and_everybody_is_told(
    client, release, real_airflow, tmp_path
):
    forget_what_was_computed(release)
    marker = tmp_path / "started"
    release.script(**{"quantize/small": {"seconds": 300, "file": str(marker)}})
    run, queued = trigger(client, DAG), trigger(client, DAG)
    until(lambda: started(marker))
    for one, told in ((queued, {}), (run, {"note": "It took too long."})):
        client.call("PATCH", one.path, json={"state": "failed", **told})
    assert queued.state == "failed", "it has no task that could fail"
    assert re.fullmatch(r"Marked as failed by admin, 20.* UTC", note_of(queued))
    assert re.fullmatch(r"It took too long\.\n\nMarked as failed by admin, 20.* UTC", note_of(run))
    until(lambda: run.task("give_back").state not in (None, "running", "scheduled", "queued"), look_seconds=1)
    until(run.ended)
    assert run.state == "failed"
    admin = real_airflow.token("admin")
    listed = httpx.get(f"{real_airflow.access.url}/llm-pipeline/releases?state=ended", headers=admin).text
    assert '<td class="ended">ended</td>' in listed
    assert "run: ended by admin" in listed


@pytest.mark.thorough
def test_a_task_that_is_marked_failed_takes_its_stage_with_it_and_a_rejection_moves_no_traffic(
    client, release, tmp_path
):
    forget_what_was_computed(release)
    marker = tmp_path / "started"
    release.script(**{"quantize/small": {"seconds": 300, "file": str(marker)}})
    run = trigger(client, DAG)
    until(lambda: started(marker))
    records = (release.root / "work" / "jobs").glob("*/quantize.small/*/process.json")
    process = detached.load(max(records, key=lambda path: path.stat().st_mtime))
    assert process.session_alive
    run.mark_failed("recipes_1.quantize", 0)
    until(lambda: not process.session_alive)

    assert finish(run, approve=False) == "failed"
    assert run.task("recipes_2.quantize", 0).state == "success"
    assert run.task("promotion_1.canary_5", 0).state == "upstream_failed"
    assert run.task("give_back").state == "success", "one red task for one cause"
    assert run.task("report").state == "success"


def test_a_second_start_finds_the_running_airflow(real_airflow):
    before = detached.load(real_airflow.home / "processes" / "scheduler.json")
    assert "llm_pipeline.demo.airflow_process" in before.command  # whose forks, the tasks, import little
    assert real_airflow.start() == real_airflow.access
    assert detached.load(real_airflow.home / "processes" / "scheduler.json") == before


def test_what_is_secret_is_readable_for_its_owner_only(real_airflow):
    for name in ("passwords.json", "keys.json"):
        assert (real_airflow.home / name).stat().st_mode & 0o777 == 0o600
    assert real_airflow.access.password not in repr(real_airflow.access)
