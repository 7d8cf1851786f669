"""`llm-pipeline approve-step`, `pause`, `resume` and `guard`, as a person calls them."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployment_here import write_deployment

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.people import ask, read_approval
from llm_pipeline.canary.record import CanaryJournal, CanaryRecord
from llm_pipeline.cli import main
from llm_pipeline.store.place_state import edit_place


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    monkeypatch.setenv("LLM_PIPELINE_DEPLOYMENT", str(write_deployment(tmp_path, 18541)))
    store = LocalStore(f"file://{tmp_path}/store")
    store.write_document("releases/r1/release.json", {}, None)
    return store


def test_a_step_is_approved_once_and_a_second_answer_is_told_that_it_is_late(deployment, capsys) -> None:
    ask(deployment, "r1", "cpu", 25, run="run", question="begin", summary="may it begin?", deadline_seconds=60)
    assert main(["approve-step", "r1", "cpu", "25"]) == 0
    assert capsys.readouterr().out == "approved: step 25 %\n"
    approval = read_approval(deployment, "r1", "cpu", 25)
    assert approval is not None
    assert (approval.answer, "@" in approval.by) == ("approved", True)
    assert main(["approve-step", "r1", "cpu", "25", "--deny"]) == 2
    assert "too late, nothing was changed: it was approved by" in capsys.readouterr().out


def test_an_answer_to_a_canary_that_does_not_exist_is_refused(deployment, capsys) -> None:
    del deployment
    assert main(["approve-step", "r9", "cpu", "25"]) == 4
    assert "r9" in capsys.readouterr().err


def test_the_guard_says_when_there_is_nothing_to_do(deployment, capsys) -> None:
    del deployment
    assert main(["guard"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert (first.startswith("deployment here, store file://"), second) == (True, "nothing to do")


def test_a_canary_is_paused_once_and_resumed_once(deployment, capsys) -> None:
    assert main(["pause"]) == 4
    assert "nothing is on trial on cpu" in capsys.readouterr().err
    repository = ArtifactRef(kind="model_repository", digest="b" * 64)
    record = CanaryRecord(
        release_id="r1", target="cpu", repository=repository, stable="blue", candidate="green", began_at=1.0
    )
    CanaryJournal(deployment, "r1", "cpu").save(record)
    edit_place(deployment, "cpu", lambda state: state.model_copy(update={"on_trial": "r1"}))
    assert main(["pause", "cpu", "--reason", "odd"]) == 0
    assert capsys.readouterr().out.startswith("paused: the canary of r1 on cpu keeps its 0 % of the traffic")
    assert main(["pause"]) == 2
    assert "nothing was changed" in capsys.readouterr().out
    assert main(["resume"]) == 0
    assert capsys.readouterr().out == "resumed: the canary of r1 on cpu\n"
    assert main(["resume"]) == 2
