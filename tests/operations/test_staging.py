"""The staging server of a place by hand: never under a release that is on its way."""

from __future__ import annotations

from pathlib import Path

import pytest
from claim_holder import holder
from deployment_here import write_deployment

from llm_pipeline.base.errors import ConfigError, ExitCode
from llm_pipeline.cli import main
from llm_pipeline.operations import staging
from llm_pipeline.release.claim import ClaimState


@pytest.fixture(autouse=True)
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_PIPELINE_DEPLOYMENT", str(write_deployment(tmp_path, 18581)))


def test_nothing_staged_is_stopped_as_often_as_one_likes(capsys) -> None:
    for _ in range(2):
        assert main(["stop", "cpu", "--staging"]) == ExitCode.GO
        assert capsys.readouterr().out == "nothing was staged at cpu\n"


def test_a_release_that_there_is_not_is_not_staged(capsys) -> None:
    assert main(["start", "cpu", "--staging", "no-such"]) == ExitCode.BAD_INPUT
    assert "no-such" in capsys.readouterr().err


def test_a_run_whose_process_has_ended_keeps_nobody_from_stopping_what_it_staged(monkeypatch, capsys) -> None:
    monkeypatch.setattr(staging, "places_of", lambda *_: {"cpu"})
    dead = ClaimState(holder=holder(pid_offset=1))
    monkeypatch.setattr(staging, "readable_claims", lambda _: ({"org/model": dead}, []))
    assert main(["stop", "cpu", "--staging"]) == ExitCode.GO
    assert capsys.readouterr().out == "nothing was staged at cpu\n"


@pytest.mark.parametrize(
    ("parked", "place", "refused"), [(False, "cpu", True), (True, "cpu", False), (False, "x", False)]
)
def test_what_a_release_on_its_way_may_measure_is_left_alone(monkeypatch, capsys, parked, place, refused) -> None:
    monkeypatch.setattr(
        staging, "readable_claims", lambda _: ({"org/model": ClaimState(holder=holder(parked=parked))}, [])
    )
    monkeypatch.setattr(staging, "places_of", lambda *_: {place})
    assert main(["stop", "cpu", "--staging"]) == (ConfigError.exit_code if refused else ExitCode.GO)
    assert ("r-1" in capsys.readouterr().err) is refused
