"""The end of an Airflow and what stands before its start; runs after all tests that need it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from real_airflow import PORT

from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.demo.local_airflow import AirflowClient, read_access, start_airflow, stop_airflow


def test_nothing_is_left_after_the_stop(real_airflow):
    stop_airflow(real_airflow.home)
    assert processes_of(real_airflow.home) == []
    assert not list((real_airflow.home / "processes").iterdir())
    with pytest.raises(Transient):
        AirflowClient(real_airflow.access)
    stop_airflow(real_airflow.home)  # again is fine


def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", PORT + 1))
        taken.listen()
        with pytest.raises(ConfigError, match=f"port {PORT + 1} is in use"):
            start_airflow(tmp_path, PORT + 1)


def test_no_access_is_known_before_a_start(tmp_path):
    with pytest.raises(ConfigError, match="no Airflow was started here"):
        read_access(tmp_path, PORT)


def processes_of(home: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"AIRFLOW_HOME={home}".encode() in environment:
                found.append(int(entry.name))
    return found
