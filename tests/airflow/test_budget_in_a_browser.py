"""The budget in a real browser: from the form that starts a release to the question, its answer, and what follows."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from importlib.metadata import version

import pytest
from real_airflow import until
from test_impossible_release import without_hub_in

from llm_pipeline.demo.airflow_client import AirflowClient
from llm_pipeline.demo.airflow_services import start_airflow, stop_airflow
from llm_pipeline.demo.screenshots import Browser, _log_in
from llm_pipeline.flow import ReleaseProgress
from llm_pipeline.operations.decisions import read_decision
from llm_pipeline.release.loading import load_release

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium is installed"),
]

PORT = 18598
DAG = "release__tiny"
BUDGET = "document.querySelector('input[name=element_budget_hours]')"
TEXT = "(document.body?.innerText ?? '')"


@pytest.fixture
def release(tmp_path, make_project):
    """A release of one recipe and one target without a budget of its own."""
    project = without_hub_in(make_project(tmp_path))
    text = project.config.read_text().replace("[small, large]", "[small]").replace("[cpu-a, cpu-b]", "[cpu-a]")
    project.config.write_text(text)
    return project


@pytest.fixture
def client(release, tmp_path, empty_database) -> Iterator[AirflowClient]:
    home = tmp_path / "airflow"
    home.mkdir()
    shutil.copyfile(empty_database, home / "airflow.db")
    (home / "migrated").write_text(version("apache-airflow"))
    try:
        access = start_airflow(home, PORT, releases=release.config.parent)
        with AirflowClient(access) as client:
            until(lambda: client.has_dag(DAG))
            client.unpause(DAG)
            yield client
    finally:
        stop_airflow(home)


async def trigger(browser: Browser, client: AirflowClient, hours: str) -> str:
    """Start a run by the form, with such a budget; its id."""
    await browser.open(f"{client.access.url}/dags/{DAG}")
    await browser.click("Trigger Dag")
    await browser.wait_for(f"!!{BUDGET}", "the form")
    await browser.evaluate(f"{BUDGET}.focus()")
    await browser.call("Input.insertText", text=hours)
    await browser.wait_for(f"{BUDGET}.value == {hours!r}", "the budget")
    await browser.press("Trigger")
    await browser.wait_for("location.pathname.includes('/runs/')", "the run")
    return client.latest_run(DAG)


async def answer(browser: Browser, client: AirflowClient, run_id: str, option: str) -> str:
    """Answer the question where Airflow lists what it requires of people; the text of the question's page."""
    pending = await asyncio.to_thread(until, lambda: client.pending_approvals(DAG, run_id), 600)
    assert [(task_id, index) for task_id, index, _ in pending] == [("plan", -1)]
    await browser.open(f"{client.access.url}/required_actions")
    about = f"e.innerText.startsWith('Spend more than the budget') && e.href.includes({run_id!r})"  # answered ones, too
    question = f"[...document.querySelectorAll('a')].find(e => {about})"
    await browser.wait_for(f"!!{question}", "the question")
    await browser.evaluate(f"{question}.click()")
    await browser.wait_for("location.pathname.includes('/tasks/plan/')", "the task")
    await browser.wait_for(f"{TEXT}.includes('ends the release here')", "the question's text")
    asked = await browser.evaluate("document.body.innerText")
    await browser.press(option)
    await browser.wait_for(f"{TEXT}.includes('Response received')", "the answer")
    return str(asked)


def ended(client: AirflowClient, run_id: str) -> dict[str, str | None]:
    """The states of a run's tasks by id, once it has ended well."""
    until(lambda: client.run_state(DAG, run_id) in ("success", "failed"), 1200, look_seconds=2)
    assert client.run_state(DAG, run_id) == "success"
    return {task.task_id: task.state for task in client.task_states(DAG, run_id)}


def test_a_plan_above_the_budget_of_the_form_is_refused_and_then_approved(release, client):
    async def session() -> None:
        async with Browser(timeout_seconds=300) as browser:
            await _log_in(browser, client.access)
            refused = await trigger(browser, client, "0.001")
            asked = await answer(browser, client, refused, "Reject")
            assert "budget\t3.6 s" in asked
            assert "quantize small" in asked  # is not known before it ran once
            states = await asyncio.to_thread(ended, client, refused)
            assert (states["plan"], states["report"], states["give_back"]) == ("success",) * 3
            assert {states[task] for task in ("eval_data", "download", "recipes_1.quantize")} == {"skipped"}

            approved = await trigger(browser, client, "0.002")
            assert "budget\t7.2 s" in await answer(browser, client, approved, "Approve")
            states = await asyncio.to_thread(ended, client, approved)
            assert {states[task] for task in ("download", "targets.build", "promotion_1.settle")} == {"success"}

    asyncio.run(session())
    progress = ReleaseProgress.open(load_release(release.config).deployment, "tiny-01234567-00000000")
    assert progress.record.overrides_in_words == "budget in hours 0.002, by admin"
    decision = read_decision(progress, "plan")
    assert (decision.answer, decision.by) == ("approved", "admin")
