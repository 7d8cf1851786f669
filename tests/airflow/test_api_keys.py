"""API keys of servers that Airflow's connections hold: they reach the processes that need them, and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from llm_pipeline_airflow.api_keys import fetch_api_keys
from llm_pipeline_airflow.command import CommandOperator
from llm_pipeline_airflow.operators import StageOperator
from pydantic import ValidationError

from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.runners.stage_environment import key_connections

KEY = "k3y-that-nobody-sees"
ENDPOINT = Endpoint(
    url="http://10.0.0.1:8000", openai_model="llm", api_key_variable="VLLM_TEST_KEY", api_key_connection="vllm"
)
CONFIG = {"place": {"staging": {"kind": "openai", "endpoint": ENDPOINT.model_dump(mode="json")}}}


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_TEST_KEY", "")
    monkeypatch.setenv("AIRFLOW_CONN_VLLM", json.dumps({"conn_type": "http", "password": KEY}))


def test_a_connections_password_is_the_servers_key(caplog: pytest.LogCaptureFixture) -> None:
    fetch_api_keys(CONFIG)
    assert ENDPOINT.headers() == {"Authorization": f"Bearer {KEY}"}
    assert KEY not in json.dumps(CONFIG) + caplog.text


def test_the_workers_own_variable_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_TEST_KEY", "theirs")
    fetch_api_keys(CONFIG)
    assert os.environ["VLLM_TEST_KEY"] == "theirs"


@pytest.mark.parametrize("given", ["{ no connection " + KEY, json.dumps({"conn_type": "http", "host": KEY}), None])
def test_a_connection_without_a_key_is_told_by_its_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, given: str | None
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_VLLM")
    if given is not None:
        monkeypatch.setenv("AIRFLOW_CONN_VLLM", given)
    fetch_api_keys(CONFIG)
    assert os.environ["VLLM_TEST_KEY"] == ""
    assert "the connection vllm" in caplog.text
    assert KEY not in caplog.text


class Asking(CommandOperator):
    """Runs no command."""

    environment: Mapping[str, str]

    def command(self, context: object) -> Sequence[str]:  # noqa: ARG002
        return ("guard",)

    def _run(self, command: list[str], environment: dict[str, str]) -> int:
        assert KEY not in " ".join(command)
        self.environment = environment
        return 0


def test_commands_of_a_deployment_get_the_key_of_its_slots(tmp_path: Path) -> None:
    slots = {
        slot: {"kind": "openai", "endpoint": {**ENDPOINT.model_dump(mode="json"), "url": f"http://10.0.0.{last}:8000"}}
        for slot, last in (("blue", 1), ("green", 2))
    }
    place = {"staging": {"http": 20001, "grpc": 20002, "metrics": 20003}, **slots}
    place["router"] = {"port": 20004, "admin_port": 20005}
    roots = {"store": "store", "work_root": "work", "state_root": "state", "triton_home": "triton"}
    python = {"control": "/usr/bin/python3"}
    (path := tmp_path / "here.yaml").write_text(json.dumps({**roots, "environments": python, "places": {"gpu": place}}))
    operator = Asking(task_id="guard", deployment_file=str(path), subject="gpu")
    operator.execute({})  # type: ignore[typeddict-item] - it reads nothing of the run
    assert operator.environment["VLLM_TEST_KEY"] == KEY


def test_a_stage_is_started_with_the_key_of_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str] = []
    started = SimpleNamespace(
        submit=lambda *_: (
            keys.append(os.environ["VLLM_TEST_KEY"])
            or SimpleNamespace(log_place="-", model_dump=lambda **_: {"job": 1})
        )
    )
    operator = StageOperator(task_id="staging", config_path="-", stage="staging", subject="gpu", release_id="r1")
    monkeypatch.setattr(operator, "request", lambda _: SimpleNamespace(config=CONFIG))
    monkeypatch.setattr(operator, "_check_claim", lambda *_: None)
    monkeypatch.setattr(operator, "_runner_here", lambda: started)
    monkeypatch.setattr("llm_pipeline_airflow.operators.placement", lambda _: None)
    assert operator.submit_job({}) == {"job": 1}  # type: ignore[typeddict-item]
    assert keys == [KEY]


def test_a_configuration_without_connections_asks_for_none() -> None:
    assert key_connections({"endpoint": {"url": "http://10.0.0.1:8000", "api_key_variable": "VLLM_TEST_KEY"}}) == {}


def test_a_connection_needs_the_variable_that_hands_its_password_on() -> None:
    with pytest.raises(ValidationError, match="api_key_connection needs api_key_variable"):
        Endpoint(url="http://10.0.0.1:8000", api_key_connection="vllm")
