"""Secrets that Airflow's connections hold: they reach the processes that need them, and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.models.connection import Connection
from airflow.sdk.configuration import clear_secrets_backends_cache
from llm_pipeline_airflow import connections
from llm_pipeline_airflow.connections import fetch_secrets
from llm_pipeline_airflow.operators import StageOperator
from one_token_hub import KEY, hub

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.operations.doctor import examine

ENDPOINT = Endpoint(url="http://10.0.0.1:8000", openai_model="llm", api_key_variable="VLLM_TEST_KEY")
KEYS = {"VLLM_TEST_KEY": "vllm"}


@pytest.fixture(autouse=True)
def vllm_connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(connections, "_given", {})
    clear_secrets_backends_cache()
    monkeypatch.setenv("VLLM_TEST_KEY", "")
    monkeypatch.setenv("AIRFLOW_CONN_VLLM", json.dumps({"conn_type": "http", "password": KEY}))
    yield
    clear_secrets_backends_cache()


def test_a_connections_password_is_the_servers_key(caplog: pytest.LogCaptureFixture) -> None:
    fetch_secrets(KEYS)
    assert ENDPOINT.headers() == {"Authorization": f"Bearer {KEY}"}
    assert KEY not in caplog.text


def test_the_test_button_says_whether_hub_and_store_take_the_secret(monkeypatch: pytest.MonkeyPatch, s3) -> None:
    def tested(conn_type: str, **fields: str) -> tuple[bool, str]:
        monkeypatch.setenv("AIRFLOW_CONN_HERE", json.dumps({"conn_type": conn_type, **fields}))  # as the button does
        return Connection(conn_id="here", conn_type=conn_type).test_connection()

    with hub() as url:
        assert tested("llm_hub", host=url, password=KEY) == (True, "the token is that of anna")
        assert tested("llm_hub", host=url, password="another")[0] is False
    keys = {"host": s3.endpoint, "login": "test-access-key", "password": "test-secret-key"}
    bucket = s3.bucket()
    assert tested("llm_store", schema=bucket, **keys) == (True, f"the key may list {bucket}")
    good, why = tested("llm_store", schema="no-such-bucket", **keys)
    assert not good
    assert "NoSuchBucket" in why


def test_a_secret_in_the_environment_and_in_a_connection_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_TEST_KEY", "theirs")
    with pytest.raises(ConfigError, match="VLLM_TEST_KEY is in the environment, and the connection vllm") as refused:
        fetch_secrets(KEYS)
    assert os.environ["VLLM_TEST_KEY"] == "theirs"
    assert not {"theirs", KEY} & set(str(refused.value).split())


def test_a_secret_is_that_of_its_connection_as_it_is_now_and_none_of_another_deployments(monkeypatch, caplog) -> None:
    fetch_secrets(KEYS)
    monkeypatch.setenv("AIRFLOW_CONN_VLLM", json.dumps({"conn_type": "http", "password": "the-next-one"}))
    fetch_secrets(KEYS)
    assert os.environ["VLLM_TEST_KEY"] == "the-next-one"
    fetch_secrets({"VLLM_TEST_KEY": "of_another_deployment"})
    assert not os.environ.get("VLLM_TEST_KEY")
    assert "the connection of_another_deployment" in caplog.text
    fetch_secrets(KEYS)
    assert os.environ["VLLM_TEST_KEY"] == "the-next-one"


def test_one_connection_holds_both_keys_of_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(variable, "")
    bucket = {"conn_type": "aws", "login": "AKIAIOSFODNN7EXAMPLE", "password": KEY}
    monkeypatch.setenv("AIRFLOW_CONN_BUCKET", json.dumps(bucket))
    fetch_secrets({"AWS_ACCESS_KEY_ID": "bucket", "AWS_SECRET_ACCESS_KEY": "bucket"})
    assert (os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]) == (bucket["login"], KEY)


def test_a_secrets_backend_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_VLLM")
    (tmp_path / "connections.json").write_text(json.dumps({"vllm": {"conn_type": "http", "password": KEY}}))
    backend = "airflow.secrets.local_filesystem.LocalFilesystemBackend"
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND", backend)
    given = json.dumps({"connections_file_path": str(tmp_path / "connections.json")})
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND_KWARGS", given)
    fetch_secrets(KEYS)
    assert os.environ["VLLM_TEST_KEY"] == KEY


@pytest.fixture
def deployment_file(tmp_path: Path) -> Path:
    slots = {
        slot: {"kind": "openai", "endpoint": {**ENDPOINT.model_dump(mode="json"), "url": f"http://10.0.0.{last}:8000"}}
        for slot, last in (("blue", 1), ("green", 2))
    }
    place = {"staging": {"http": 20001, "grpc": 20002, "metrics": 20003, "openai": 20004}, **slots}
    place["router"] = {"port": 20006, "admin_port": 20005}
    roots = {"store": "store", "work_root": "work", "state_root": "state", "triton_home": "triton"}
    document = {**roots, "environments": {"control": "/usr/bin/python3"}, "places": {"gpu": place}}
    document["airflow_connections"] = {"HF_TEST_TOKEN": "hub", **KEYS}
    (path := tmp_path / "here.yaml").write_text(json.dumps(document))
    return path


def test_a_stage_begins_with_the_secrets_of_its_deployment(project, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = project.config.parents[1] / "deployments" / "here.yaml"
    deployment.write_text(deployment.read_text() + "airflow_connections: { VLLM_TEST_KEY: vllm }\n")
    operator = StageOperator(task_id="download", config_path=str(project.config), stage="download", release_id="r1")
    assert operator.configured.deployment.airflow_connections == KEYS
    assert os.environ["VLLM_TEST_KEY"] == KEY


def test_the_doctor_says_where_each_secret_comes_from(deployment_file, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_TEST_TOKEN", KEY)
    checks = examine(load_yaml(deployment_file, Deployment))
    found = {check.subject[7:]: check for check in checks if check.subject.startswith("secret ")}
    assert {name: check.detail for name, check in found.items()} == {
        "HF_TEST_TOKEN": "the environment, and Airflow's connection hub",
        "HF_TOKEN": "not set",
        "VLLM_TEST_KEY": "Airflow's connection vllm, for what Airflow runs",
    }
    assert [name for name, check in found.items() if check.state == "failed"] == ["HF_TEST_TOKEN"]
