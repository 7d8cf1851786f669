from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployment_here import write_deployment

from llm_pipeline.base import detached
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.planning import host


@pytest.fixture
def listening() -> Iterator[int]:
    """A port that something listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_foreign_listener_is_reported_and_our_own_server_is_not(tmp_path: Path, listening: int):
    deployment = load_yaml(write_deployment(tmp_path, 20000), Deployment)
    place = deployment.places["cpu"]
    staging = place.staging.model_copy(update={"http": listening})
    here = deployment.model_copy(update={"places": {"cpu": place.model_copy(update={"staging": staging})}})

    def reported() -> bool:
        return any(f"places.cpu.staging: this port {listening}" in line for line in host.busy_ports(here, ("cpu",)))

    assert reported()
    state = tmp_path / "state" / "cpu" / "staging"
    process = detached.start("server", ["sleep", "60"], state / "process.json", log=tmp_path / "log")
    (state / "server.json").write_text('{"another": "document"}')
    try:
        assert not reported()
    finally:
        detached.stop(process, grace_seconds=2.0)
    assert reported()
