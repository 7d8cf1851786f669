from __future__ import annotations

import socket
import sys
from pathlib import Path

from llm_pipeline.base import detached
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.store import Signing, store_settings
from llm_pipeline.planning import host


def deployment(tmp_path: Path, base: int) -> Deployment:
    server = {"http": base, "grpc": base + 1, "metrics": base + 2, "openai": base + 3}
    place = {
        "staging": server,
        "blue": {name: port + 10 for name, port in server.items()},
        "green": {name: port + 20 for name, port in server.items()},
        "router": {"port": base + 30, "admin_port": base + 31},
    }
    return Deployment.model_validate(
        {
            "name": "d",
            "store": f"file://{tmp_path}/store",
            "work_root": f"{tmp_path}/work",
            "state_root": f"{tmp_path}/state",
            "environments": {"control": sys.executable, "model": sys.executable},
            "triton_home": "/opt/triton",
            "places": {"cpu": place},
        }
    )


def listening() -> tuple[socket.socket, int]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener, listener.getsockname()[1]


def test_a_foreign_listener_is_reported_and_our_own_server_is_not(tmp_path: Path):
    listener, port = listening()
    with listener:
        place = deployment(tmp_path, 20000)
        staging = place.places["cpu"].staging.model_copy(update={"http": port})
        changed = place.places["cpu"].model_copy(update={"staging": staging})
        place = place.model_copy(update={"places": {"cpu": changed}})
        assert any(f"places.cpu.staging: this port {port}" in line for line in host.busy_ports(place, ("cpu",)))

        state = tmp_path / "state" / "cpu" / "staging"
        process = detached.start("server", ["sleep", "60"], state / "process.json", log=tmp_path / "log")
        (state / "server.json").write_text('{"another": "document"}')
        try:
            assert not any(str(port) in line for line in host.busy_ports(place, ("cpu",)))
        finally:
            detached.stop(process, grace_seconds=2.0)
        assert any(str(port) in line for line in host.busy_ports(place, ("cpu",)))


def test_what_signing_needs_and_is_not_here_is_said(tmp_path: Path, monkeypatch):
    here = deployment(tmp_path, 20000)
    assert host.missing_signing_keys(here) == ()
    (tmp_path / "public").touch()
    keys = {"private_key": f"{tmp_path}/private", "public_keys": (f"{tmp_path}/public",), "password_variable": "SIGN"}
    signed = here.model_copy(update={"store": store_settings(uri=here.store.uri, signing=Signing(**keys))})
    monkeypatch.delenv("SIGN", raising=False)
    key, password = host.missing_signing_keys(signed)
    assert f"there is no file {tmp_path}/private" in key
    assert password.startswith("SIGN is not set")
