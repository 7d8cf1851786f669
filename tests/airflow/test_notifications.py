"""A canary step tells people what happens to its canary while it runs; a failing service does not fail it."""

from __future__ import annotations

import time

import pytest
from llm_pipeline_airflow import promotion
from llm_pipeline_airflow.dag_factory import release_dag
from place_here import canary_record

from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.record import CanaryJournal, EventKind
from llm_pipeline.store import open_store

REPOSITORY = ArtifactRef(kind="model_repository", digest="a" * 64)


@pytest.fixture
def step(project):
    step = release_dag(project.config).get_task("promotion_1.canary_5")
    step.subject, step.release_id = "cpu-a", "r1"
    return step


def test_what_happens_is_told_while_the_stage_runs_and_when_it_ended(step, project, monkeypatch, told):
    journal = CanaryJournal(open_store(f"file://{project.root}/store"), "r1", "cpu-a")
    record = canary_record("r1", "cpu-a", began_at=time.time())
    monkeypatch.setattr(promotion.StageOperator, "poll_until_complete", lambda self, *_: self.attend())
    record = journal.save(record.with_event(EventKind.STARTED, "candidate started", by="a controller"))
    step.attend()
    record = journal.save(record.with_event(EventKind.SHIFTED, "5 %", by="a controller"))
    step.attend()  # too soon
    assert len(told.titles) == 1
    step.poll_until_complete(None, {})
    assert [title.rpartition(": ")[2] for title in told.titles] == ["started", "shifted"]
    told.refuse = [500]
    journal.save(record.with_event(EventKind.PASSED, "5 %", by="a controller"))
    step.poll_until_complete(None, {})
    assert len(told.titles) == 2


def test_a_config_that_is_broken_meanwhile_does_not_end_the_canary(step, project, caplog):
    project.config.write_text("nonsense: 1\n")
    step._tell()
    assert "no notification is sent" in caplog.text
