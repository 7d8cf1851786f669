"""`llm-pipeline stop` ends what runs left at a place, and the staging server, never under a release on its way."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from claim_holder import holder
from deployment_here import write_deployment
from place_here import canary_record

from llm_pipeline.base import detached
from llm_pipeline.base.errors import ConfigError, ExitCode
from llm_pipeline.canary.record import CanaryJournal, Phase, read_canary_record
from llm_pipeline.cli import main
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.operations import switching
from llm_pipeline.release.claim import ClaimState
from llm_pipeline.store import open_store
from llm_pipeline.store.place_state import edit_place


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLM_PIPELINE_DEPLOYMENT", str(write_deployment(tmp_path, 18601, ("cpu", "other"))))
    monkeypatch.setattr(switching, "places_of", lambda *_: {"cpu"})
    return tmp_path


@pytest.fixture
def left(root: Path) -> Iterator[detached.DetachedProcess]:
    directory = root / "jobs" / "r-1" / "load_test.cpu" / "1"
    name, command, log = "stage load_test cpu", ["sleep", "600"], directory / "log.jsonl"
    process = detached.start(name, command, directory / "process.json", log=log)
    yield process
    detached.stop(process)


def test_a_stage_whose_run_is_over_is_ended_once_at_its_place(left, capsys) -> None:
    assert main(["stop", "other"]) == ExitCode.GO
    assert capsys.readouterr().out == "other: nothing ran, nothing was stopped\n"
    assert left.alive
    assert main(["stop"]) == ExitCode.GO
    assert "cpu: stopped stage load_test cpu\n" in capsys.readouterr().out
    assert not left.alive
    assert main(["stop"]) == ExitCode.GO
    assert "stage" not in capsys.readouterr().out


@pytest.mark.parametrize(("alive", "ended"), [(True, False), (False, True)])
def test_a_release_on_its_way_keeps_its_stages_until_its_process_has_ended(
    left, monkeypatch, capsys, alive: bool, ended: bool
) -> None:
    state = ClaimState(holder=holder(pid_offset=0 if alive else 1))
    monkeypatch.setattr(switching, "readable_claims", lambda _: ({"org/model": state}, []))
    assert main(["stop", "cpu"]) == ExitCode.GO
    assert ("r-1" in capsys.readouterr().out) is not ended
    assert left.alive is not ended


def test_a_canary_is_ended_though_its_run_is_still_there(root: Path, monkeypatch, capsys) -> None:
    deployment = load_yaml(root / "here.yaml", Deployment)
    store = open_store(deployment.store)
    CanaryJournal(store, "r2", "cpu").save(canary_record(began_at=0.0))
    edit_place(store, "cpu", lambda state: state.model_copy(update={"on_trial": "r2"}))
    (Path(deployment.state_root) / "cpu").mkdir(parents=True)
    monkeypatch.setattr(switching, "readable_claims", lambda _: ({"org/model": ClaimState(holder=holder())}, []))
    for said in ("cpu: stopped the canary of r2\n", "cpu: nothing ran, nothing was stopped\n"):
        assert main(["stop", "cpu", "--yes"]) == ExitCode.GO
        assert capsys.readouterr().out.startswith(said)
    ended = read_canary_record(store, "r2", "cpu")
    assert ended is not None
    assert ended.phase is Phase.ROLLED_BACK


@pytest.mark.skipif(os.geteuid() != 0, reason="starts a process of another user")
def test_nothing_is_stopped_where_a_server_is_another_users(root: Path, left) -> None:
    slot = root / "state" / "cpu" / "blue"
    command = ["setpriv", "--reuid=65534", "--clear-groups", "sleep", "600"]
    theirs = detached.start("tritonserver blue", command, slot / "process.json", log=slot / "server.log")
    try:
        stop = [sys.executable, "-m", "llm_pipeline", "stop", "--yes"]
        not_theirs = ["setpriv", "--bounding-set=-kill", *stop]  # this root may stop nobody else's processes
        done = subprocess.run(not_theirs, capture_output=True, text=True, check=False)
        assert done.returncode == ExitCode.BAD_INPUT
        said = f"error: process {theirs.pid} belongs to the user nobody -> run this as nobody"
        assert done.stderr.splitlines()[-1].startswith(said)
        assert left.alive
        assert theirs.alive
    finally:
        detached.stop(theirs)


def test_nothing_staged_is_stopped_as_often_as_one_likes_also_beside_a_run_that_has_ended(monkeypatch, capsys) -> None:
    for dead in ({}, {"org/model": ClaimState(holder=holder(pid_offset=1))}):
        monkeypatch.setattr(switching, "readable_claims", lambda _, dead=dead: (dead, []))
        assert main(["stop", "cpu", "--staging"]) == ExitCode.GO
        assert capsys.readouterr().out == "nothing was staged at cpu\n"


def test_a_release_that_there_is_not_is_not_staged(capsys) -> None:
    assert main(["start", "cpu", "--staging", "no-such"]) == ExitCode.BAD_INPUT
    assert "no-such" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("parked", "place", "refused"), [(False, "cpu", True), (True, "cpu", False), (False, "x", False)]
)
def test_what_a_release_on_its_way_may_measure_is_left_alone(monkeypatch, capsys, parked, place, refused) -> None:
    monkeypatch.setattr(
        switching, "readable_claims", lambda _: ({"org/model": ClaimState(holder=holder(parked=parked))}, [])
    )
    monkeypatch.setattr(switching, "places_of", lambda *_: {place})
    assert main(["stop", "cpu", "--staging"]) == (ConfigError.exit_code if refused else ExitCode.GO)
    assert ("r-1" in capsys.readouterr().err) is refused
