"""The claim on a model: never two holders, whoever asks, dies or wakes up again, in any order."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from deployment_here import write_bare_deployment
from waiting import until

from llm_pipeline.base.detached import process_start_ticks
from llm_pipeline.base.errors import ExitCode
from llm_pipeline.cli import main
from llm_pipeline.release.claim import (
    AirflowRun,
    Claimant,
    ClaimLost,
    ClaimState,
    LocalProcess,
    ReleaseClaim,
    claim_name,
    free_claim,
    read_claim,
    readable_claims,
)
from llm_pipeline.store.artifact_store import Document

MODEL = "organisation/model"


def claimant(number: int, *, airflow: str = "a", party: LocalProcess | None = None) -> Claimant:
    """A DAG run's claimant, or a process's."""
    run = AirflowRun(airflow=airflow, dag_id="release__tiny", run_id=f"run-{number}")
    now = datetime.now(UTC)
    return Claimant(party=party or run, release="tiny", since=now, renewed_at=now, stale_after_hours=48.0)


def claim(store, number: int, over: frozenset[str] = frozenset(), **known) -> ReleaseClaim:
    """The claim as a DAG run sees it, in an Airflow where the runs named in `over` have ended."""
    airflow = known.get("airflow", "a")
    return ReleaseClaim(
        store,
        MODEL,
        claimant(number, **known),
        run_is_over=lambda run: run.run_id in over if run.airflow == airflow else None,
    )


def holder(store) -> str:
    held = read_claim(store, MODEL).holder
    return held.party.run_id if held else ""


class TestWaiting:
    def test_the_first_one_holds_the_claim_and_the_next_is_told_whom_it_waits_for(self, store):
        assert claim(store, 1).ask() is None
        claim(store, 1).check("tiny-0123")
        other = claim(store, 2).ask()
        assert str(other) == "release tiny-0123 (DAG release__tiny, run run-1)"
        told = claim(store, 2).waiting_for(other)
        assert f"{other.since:%Y-%m-%d %H:%M} UTC" in told
        assert "claims/organisation/model.json" in told

    def test_asking_again_neither_loses_the_claim_nor_the_place_in_line(self, store):
        for number in (1, 2, 3):
            claim(store, number).ask()
        assert claim(store, 1).ask() is None
        claim(store, 2).ask()
        claim(store, 1).give_back()
        assert claim(store, 3).ask().party.run_id == "run-2"
        claim(store, 2).give_back()
        assert claim(store, 3).ask() is None, "whoever gives up leaves the line"

    def test_models_do_not_wait_for_each_other(self, store):
        assert claim(store, 1).ask() is None
        assert ReleaseClaim(store, "organisation/other", claimant(2)).ask() is None
        holders = {model: state.holder.party.run_id for model, state in readable_claims(store)[0].items()}
        assert holders == {MODEL: "run-1", "organisation/other": "run-2"}

    def test_the_block_gives_the_claim_back_however_it_ends(self, store):
        during = []
        with contextlib.suppress(KeyError), claim(store, 1).held():
            during.append(holder(store))
            raise KeyError
        assert [*during, holder(store)] == ["run-1", ""]


def test_a_run_that_waits_for_a_human_keeps_the_claim(store):
    older = claim(store, 1)
    older.ask()
    older.park()
    assert read_claim(store, MODEL).holder.parked
    assert claim(store, 2).ask() is not None
    older.check()
    assert not read_claim(store, MODEL).holder.parked


class TestTheDead:
    def test_a_dag_run_that_is_over_is_taken_over_by_the_same_airflow(self, store):
        claim(store, 1).ask()
        backdate(store, datetime.now(UTC) - timedelta(days=99))
        assert claim(store, 2).ask() is not None, "it still runs"
        assert claim(store, 2, over=frozenset({"run-1"})).ask() is None

    def test_another_airflow_waits_until_nothing_was_heard_for_long(self, store):
        long_ago = datetime.now(UTC) - timedelta(hours=47)
        claim(store, 1).ask()
        foreign = claim(store, 2, airflow="b", over=frozenset({"run-1"}))
        backdate(store, long_ago)
        assert foreign.ask() is not None
        backdate(store, long_ago - timedelta(hours=2))
        assert foreign.ask() is None

    @pytest.mark.parametrize("gone", ["over", "silent"])
    def test_one_in_line_that_is_gone_is_stepped_over(self, store, gone):
        claim(store, 1).ask()
        claim(store, 2).ask()
        if gone == "silent":
            backdate(store, datetime.now(UTC) - timedelta(hours=2))
        claim(store, 1).give_back()
        assert claim(store, 3, over=frozenset({"run-2"} if gone == "over" else ())).ask() is None

    def test_a_local_process_that_is_gone_is_taken_over_at_once(self, store):
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        ticks = process_start_ticks(process.pid)
        party = LocalProcess.here().model_copy(update={"pid": process.pid, "start_ticks": ticks})
        claim(store, 1, party=party).ask()
        assert claim(store, 2).ask() is not None
        process.kill()
        process.wait()
        assert claim(store, 2).ask() is None

    def test_a_reused_pid_is_not_taken_for_the_holder_and_two_runs_of_one_process_are_two(self, store):
        here = LocalProcess.here()
        claim(store, 1, party=here.model_copy(update={"start_ticks": here.start_ticks - 1})).ask()
        assert claim(store, 2, party=here).ask() is None
        assert str(read_claim(store, MODEL).holder.party) == f"process {os.getpid()} on {here.host}"
        assert claim(store, 3, party=LocalProcess.here()).ask() is not None

    @pytest.mark.parametrize("pids", ["", "another-boot pid:[4026531836]"])
    def test_a_process_that_cannot_be_seen_from_here_is_judged_by_its_silence(self, store, pids):
        party = LocalProcess.here().model_copy(update={"pids": pids, "pid": 2**22 + 1})
        claim(store, 1, party=party).ask()
        assert claim(store, 2).ask() is not None
        backdate(store, datetime.now(UTC) - timedelta(hours=49))
        assert claim(store, 2).ask() is None

    def test_a_local_process_is_heard_of_while_it_holds_the_claim(self, store, monkeypatch):
        monkeypatch.setattr("llm_pipeline.release.claim.RENEWED_EVERY", timedelta(seconds=0.02))
        held = ReleaseClaim(store, MODEL, claimant(1, party=LocalProcess.here()))
        with held.held():
            backdate(store, long_ago := datetime.now(UTC) - timedelta(hours=49))
            until(lambda: read_claim(store, MODEL).holder.renewed_at != long_ago)
        assert read_claim(store, MODEL).holder is None

    def test_a_holder_that_was_buried_alive_starts_nothing(self, store):
        older = claim(store, 1)
        older.ask()
        claim(store, 2, over=frozenset({"run-1"})).ask()
        with pytest.raises(ClaimLost, match="run-2"):
            older.check()
        assert str(older.taken_by_another().party) == "DAG release__tiny, run run-2"

    def test_the_command_shows_who_holds_and_who_waits_and_frees(self, store, tmp_path):
        claim(store, 1).ask()
        claim(store, 2).ask()
        assert command(tmp_path) == [
            "organisation/model  running: release tiny (DAG release__tiny, run run-1)",
            "organisation/model  waits: release tiny (DAG release__tiny, run run-2)",
        ]
        assert command(tmp_path, "--free", MODEL) == [
            "organisation/model: taken from release tiny (DAG release__tiny, run run-1)"
        ]
        assert command(tmp_path, "--free", MODEL) == ["organisation/model: no release held it"]
        assert claim(store, 2).ask() is None

    def test_a_claim_freed_by_hand_is_lost_for_its_holder(self, store):
        claim(store, 1).ask()
        claim(store, 2).ask()
        assert free_claim(store, MODEL).party.run_id == "run-1"
        with pytest.raises(ClaimLost, match=r"clear the run's task `claim`"):
            claim(store, 1).check()
        assert claim(store, 2).ask() is None


def command(root, *arguments: str) -> list[str]:
    """What `llm-pipeline claims` says, without the times."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main(["claims", "-d", write_bare_deployment(root / "here.yaml"), *arguments]) == ExitCode.GO
    return [line.partition(", since")[0] for line in said.getvalue().splitlines()]


def backdate(store, when: datetime) -> None:
    """Let nobody have been heard of since then."""
    document = store.read_document(claim_name(MODEL))
    state = ClaimState.model_validate(document.value)
    holder, *line = (one.model_copy(update={"renewed_at": when}) for one in state.everyone)
    state = ClaimState(holder=holder, waiting=tuple(line))
    store.write_document(claim_name(MODEL), state.model_dump(mode="json"), document.revision)


def test_of_two_that_ask_at_the_same_moment_one_waits(store, monkeypatch):
    read, meanwhile = store.read_document, [lambda: claim(store, 1).ask()]

    def interrupted(name: str) -> Document | None:
        document = read(name)
        if meanwhile:
            meanwhile.pop()()
        return document

    monkeypatch.setattr(store, "read_document", interrupted)
    assert claim(store, 2).ask().party.run_id == "run-1"
    assert holder(store) == "run-1"
