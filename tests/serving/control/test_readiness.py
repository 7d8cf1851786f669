"""Waiting for a server's model: why it takes no requests yet is told, in few words and without secrets."""

from __future__ import annotations

import json

import pytest
from scripted_answers import answering

from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.endpoint_access import await_model

SECRET = '5esame"0pen'


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATE_KEY", SECRET)


def refused(status: int, body: str, kind: type[Exception] = Transient) -> str:
    with answering({"/health": (status, body)}) as url, pytest.raises(kind) as told:
        await_model(Endpoint(url=url, api_key_variable="GATE_KEY"), 0.0, lambda: None)
    return str(told.value)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (
            503,
            json.dumps({"error": "model 'llm' is at capacity"}),
            "not loaded within 0 s: HTTP 503: model 'llm' is at",
        ),
        (400, "", "HTTP 400: no reason given"),
    ],
)
def test_why_a_server_does_not_become_ready_is_told(status: int, body: str, said: str) -> None:
    assert said in refused(status, body)


def test_a_server_that_is_not_there_is_told_as_such() -> None:
    with pytest.raises(Transient, match="no server answers"):
        await_model(Endpoint(url="http://127.0.0.1:9"), 0.0, lambda: None)


@pytest.mark.parametrize("before", [0, 280, 295, 299])
@pytest.mark.parametrize("as_json", [True, False])
def test_a_refused_access_has_the_reason_and_no_part_of_a_secret_wherever_it_is_cut(
    before: int, *, as_json: bool
) -> None:
    text = "x" * before + SECRET + "y" * 5000
    said = refused(401, json.dumps({"message": text}) if as_json else text, ConfigError)
    assert "refuses access: HTTP 401: " in said
    assert "5es" not in said
    assert len(said) < 1000


def test_an_endless_reason_and_its_line_ends_stay_one_short_line() -> None:
    said = refused(500, "first\nsecond\x1b[31m" + "z" * 200_000)
    assert len(said) < 1000
    assert "\x1b" not in said
