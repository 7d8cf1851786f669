"""The question between two steps, as Airflow asks it and as the store keeps it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from llm_pipeline_airflow.approvals import StepApprovalOperator
from llm_pipeline_airflow.dag_factory import release_dag
from llm_pipeline_airflow.task_endings import Refused
from place_here import canary_record, pointer, serve

from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Evidence, Verdict, judge
from llm_pipeline.canary.people import answer
from llm_pipeline.canary.record import CanaryJournal, Phase
from llm_pipeline.config.store import store_settings
from llm_pipeline.release.contract import StageResult, Timings
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.store import open_store
from llm_pipeline.store.place_state import read_place

NEW = ArtifactRef(kind="model_repository", digest="b" * 64)
RUN = datetime(2026, 11, 1, tzinfo=UTC)
CONTEXT = {"ti": SimpleNamespace(xcom_pull=lambda **_: [{"subject": "cpu-a"}])}
ASKED = "asked"


@dataclass
class Released:
    """A release whose canary passed 5 % on cpu-a, without the stages before it."""

    store: object
    resolved_at = RUN
    deployment = SimpleNamespace(
        store=store_settings(uri="file:///nowhere"), airflow_connections={}, model_dump=lambda **_: {}
    )
    record = SimpleNamespace(release_id="r2", model=SimpleNamespace(id="demo/tiny"), place_of=str)

    def artifact(self, *_name) -> ArtifactRef:
        return NEW

    def find(self, stage: str, subject: str) -> StageResult:
        assert (stage, subject) == ("canary", "cpu-a:5")
        fact = Evidence(name="errors", verdict=Verdict.GO, measured=0.01, unit="e|value", samples=77)
        return StageResult(
            release_id="r2", stage=stage, subject=subject, key="k",
            judgement=judge("no worse", [fact]), timings=Timings(started_at=RUN, total_seconds=1.0),
        )  # fmt: skip


@pytest.fixture
def store(tmp_path):
    store = open_store(f"file://{tmp_path}/store")
    serve(store, "demo/tiny", "cpu-a", pointer("r1"))
    return store


@pytest.fixture
def task(project, store, monkeypatch) -> StepApprovalOperator:
    project.edit("policies/quick", "[5, 100]", "[5, 100], approve_before_percent: [100]")
    task = release_dag(project.config).get_task("promotion_1.approve_100")
    task.target, task.release_id = "cpu-a", "r2"
    monkeypatch.setattr(ReleaseProgress, "open", lambda *_: Released(store))
    monkeypatch.setattr("llm_pipeline_airflow.approvals.tell_canary", lambda *_, **__: None)
    monkeypatch.setattr(StepApprovalOperator, "check_claim", lambda *_, **__: None)
    monkeypatch.setattr("airflow.providers.standard.operators.hitl.ApprovalOperator.execute", lambda *_: ASKED)
    return task


def answered(task, option: str = "Approve", *, timed_out: bool = False) -> None:
    user = {"id": "1", "name": "anna"}
    task.execute_complete({}, {"chosen_options": [option], "responded_by_user": user, "timedout": timed_out})


def standing(store) -> tuple[str, str]:
    approval = read_place(store, "cpu-a").approval("r2", 100)
    return approval.answer, approval.by


def test_the_question_shows_what_the_step_before_it_measured_and_is_in_the_store(task, store):
    assert task.execute(CONTEXT) == ASKED
    assert task.subject == "Move 100 % of cpu-a to r2?"
    assert "**Step 5 %: GO.** no worse" in task.body
    assert "| errors | GO | 0.01 e\\|value |" in task.body
    assert standing(store) == ("waiting", "")
    assert task.response_timeout == timedelta(hours=4)
    assert task.parks is False, "the claim is kept: the candidate has traffic"


@pytest.mark.parametrize(
    ("option", "timed_out", "stands"),
    [
        ("Approve", False, ("approved", "anna")),
        ("Reject", False, ("denied", "anna")),
        ("Reject", True, ("timed out", "nobody")),
    ],
)
def test_only_an_approval_lets_the_step_begin(task, store, option, timed_out, stands):
    task.execute(CONTEXT)
    allowed = option == "Approve"
    with nullcontext() if allowed else pytest.raises(Refused, match="the canary is rolled back"):
        answered(task, option, timed_out=timed_out)
    assert standing(store) == stands


def test_who_answered_on_the_command_line_before_is_not_asked_again(task, store):
    answer(store, "r2", "cpu-a", 100, approved=True, by="bob", run=RUN.isoformat())
    assert task.execute(CONTEXT) is None
    answered(task, "Reject")  # the first answer stands
    assert standing(store) == ("approved", "bob")


def test_an_answer_on_the_command_line_wakes_the_form_and_is_written_down_once(task, store, monkeypatch):
    awaited = []
    monkeypatch.setattr(StepApprovalOperator, "ask", lambda _self, _context, found: awaited.append(found))
    task.execute(CONTEXT)
    (found,) = awaited

    def value() -> object:
        return store.read_document(found.document).value

    assert found.found(value()) is None
    assert answer(store, "r2", "cpu-a", 100, approved=True, by="bob").counted
    assert found.found(value()) is True
    others = [{**one, "run": "another"} for one in value()["approvals"]]
    assert found.found({"approvals": others}) is None
    task.execute_complete({}, {"chosen_options": ["Approve"], "responded_by_user": None, "timedout": False})
    assert standing(store) == ("approved", "bob")


def test_a_question_is_withdrawn_when_its_canary_was_rolled_back_and_a_late_answer_changes_nothing(
    task, store, monkeypatch
):
    awaited = []
    monkeypatch.setattr(StepApprovalOperator, "ask", lambda _self, _context, found: awaited.append(found))
    task.execute(CONTEXT)
    (asked,) = awaited
    record = canary_record("r2", "cpu-a", run=RUN.isoformat(), repository=NEW, phase=Phase.ROLLED_BACK)
    assert not asked.withdrawn(store)
    CanaryJournal(store, "r2", "cpu-a").save(record)
    assert asked.withdrawn(store), "its form closes"
    with pytest.raises(Refused, match="step 100 % of cpu-a: withdrawn; the canary is rolled back"):
        answered(task)
    assert standing(store)[0] == "waiting"


def test_a_first_deployment_asks_nobody(task, store):
    store.delete_document("places/cpu-a.json")
    assert task.execute(CONTEXT) is None
    assert read_place(store, "cpu-a").approval("r2", 100) is None
