"""A running Triton that somebody else serves with, behind a gateway: whatever goes wrong, theirs is not unloaded."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("tritonclient")
sys.path.append(str(Path(__file__).parents[1]))

from scripted_answers import answering

from llm_pipeline.adapters.existing_triton.adapter import ExistingServer
from llm_pipeline.adapters.existing_triton.model_control import ModelRefused, open_model_control
from llm_pipeline.adapters.existing_triton.model_versions import candidate_config
from llm_pipeline.adapters.existing_triton.server import ExistingControl, probe
from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.config.target import Target
from llm_pipeline.serving.control import Candidate, StagingSlot

TARGET = Path(__file__).parents[3] / "configs/targets/cpu.yaml"
INDEX, CONFIG = "/v2/repository/index", "/v2/models/llm/config"
LOAD, UNLOAD = "/v2/repository/models/llm/load", "/v2/repository/models/llm/unload"
THEIRS = (200, json.dumps([{"name": "llm", "version": "3", "state": "READY"}]))


def place(url: str, tmp_path: Path) -> ExistingServer:
    repository = tmp_path / "repository"
    (repository / "llm").mkdir(parents=True, exist_ok=True)
    return ExistingServer(kind="existing", endpoint=Endpoint(url=url), repository=str(repository), shared=True)


def control(url: str, tmp_path: Path) -> ExistingControl:
    return ExistingControl(place(url, tmp_path), StagingSlot(tmp_path / "state", "demo", load_yaml(TARGET, Target)))


def test_versions_whose_configuration_is_not_told_are_left_alone(tmp_path, make_repository):
    asked: list[str] = []
    answers = {INDEX: THEIRS, CONFIG: (503, "upstream"), LOAD: (200, ""), UNLOAD: (200, "")}
    with answering(answers, asked) as url, pytest.raises(Transient, match="how the ready versions"):
        control(url, tmp_path).start(Candidate(make_repository(), "c" * 64), wait_seconds=5)
    assert not {LOAD, UNLOAD} & set(asked)
    assert not (tmp_path / "state" / "existing.json").exists()


def test_what_cannot_be_put_back_stays_on_record_so_that_it_can_be_later(tmp_path, make_repository):
    """The candidate does not load, the server has lost the configuration of before, and does not take it back."""
    repository, asked = make_repository(), list[str]()
    theirs = candidate_config(repository, "1" * 64)

    def answers(path: str) -> tuple[int, str]:
        changed = {**theirs, "max_batch_size": 8} if LOAD in asked else theirs
        refused = 400, '{"error": "failed to load"}'
        return {INDEX: THEIRS, CONFIG: (200, json.dumps(changed)), LOAD: refused}.get(path, (404, "{}"))

    with answering(answers, asked) as url:
        staging = control(url, tmp_path)
        with pytest.raises(Transient, match="does not return to what it served"):
            staging.start(Candidate(repository, "c" * 64), wait_seconds=5)
        assert (tmp_path / "state" / "existing.json").is_file()
        with pytest.raises(Transient, match="does not return to what it served"):
            staging.stop()


@pytest.mark.parametrize("body", ["<html>", "5", "[1]", '[{"name": "llm", "version": "new"}]'])
def test_what_lists_no_models_is_no_triton(tmp_path, body):
    with answering({INDEX: (200, body)}) as url, pytest.raises(ConfigError, match="not a Triton"):
        probe(place(url, tmp_path))


@pytest.mark.parametrize("body", ["<html>", "5", "[1]", "[" * 100_000])
def test_what_states_no_configuration_is_no_triton_and_is_left_alone(tmp_path, make_repository, body):
    asked: list[str] = []
    with (
        answering({INDEX: THEIRS, CONFIG: (200, body)}, asked) as url,
        pytest.raises(ConfigError, match="not a Triton"),
    ):
        control(url, tmp_path).start(Candidate(make_repository(), "c" * 64), wait_seconds=5)
    assert not {LOAD, UNLOAD} & set(asked)
    assert not (tmp_path / "state" / "existing.json").exists()


@pytest.mark.parametrize("status", [403, 500])
@pytest.mark.parametrize("body", ['{"error": "who is 5esame-0pen?"}', "who is 5esame-0pen?", "[" * 100_000])
def test_a_key_that_the_server_repeats_is_not_told(monkeypatch, status, body):
    monkeypatch.setenv("TEST_GATEWAY_KEY", "5esame-0pen")
    with answering({INDEX: (status, body), LOAD: (status, body)}) as url:
        endpoint = Endpoint(url=url, header_variables={"X-Key": "TEST_GATEWAY_KEY"})
        models = open_model_control(endpoint, timeout_seconds=5)
        for call in (models.versions, models.load):
            with pytest.raises((ConfigError, Transient, ModelRefused)) as told:
                call("llm")
            assert "5es" not in str(told.value)
