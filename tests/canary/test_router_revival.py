"""Whoever watches the router starts it again when it has ended, with the routes that it had; real Envoy."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time

import pytest
from hostile_client import ask, generation
from test_envoy import both_up, shift, split

from llm_pipeline.adapters.envoy import xds
from llm_pipeline.adapters.envoy.router import find_router, stop_router, stopped_router
from llm_pipeline.adapters.envoy.xds import replace_json
from llm_pipeline.base import detached
from llm_pipeline.canary.router import Patience, all_to, router_as_it_is
from llm_pipeline.canary.slots import ServedPlace
from llm_pipeline.operations.guard import Guard

pytestmark = pytest.mark.slow

GENERATE = "/v2/models/llm/generate"


def pid_of(site) -> int:
    process = detached.load(site.router.files.record)
    assert process is not None
    return process.pid


def end(site, number: signal.Signals) -> None:
    process = detached.load(site.router.files.record)
    assert process is not None
    os.kill(process.pid, number)
    deadline = time.monotonic() + 60
    while process.alive and not detached.process_is_stopped(process.pid, process.start_ticks):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def listening(port: int) -> socket.socket:
    """What holds a port, as soon as nothing else does."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_server(("127.0.0.1", port))
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def answered_by(site) -> str:
    return ask(site.place.port, "POST", GENERATE, generation(), {"content-type": "application/json"}).server


def test_a_router_that_was_killed_comes_back_with_its_routes(site) -> None:
    both_up(site)
    shift(site, split(100, epoch=4))
    end(site, signal.SIGKILL)
    watcher = router_as_it_is(site.place, site.slots, site.router_state)
    assert watcher.revive() == "Envoy had ended and was restarted"
    assert watcher.read()[0] == split(100, epoch=4)
    assert answered_by(site) == "green"
    assert watcher.revive() is None


def test_after_settlement_the_guard_starts_a_router_that_was_killed(site) -> None:
    """No canary is there to watch it, and every user is refused."""
    shift(site, all_to("blue", owner="settled", epoch=4))
    end(site, signal.SIGKILL)
    router = router_as_it_is(site.place, site.slots, site.router_state)
    guarded = Guard(ServedPlace(site.store, "", "cpu", router, site.control, Patience()))
    (action,) = guarded.guard(time.time())
    assert (action.what, action.detail) == ("started", "Envoy had ended and was restarted")
    assert answered_by(site) == "blue"
    assert guarded.guard(time.time()) == []


@pytest.mark.thorough
def test_a_frozen_router_is_replaced(site) -> None:
    end(site, signal.SIGSTOP)
    assert site.router.revive() == "Envoy was frozen and was replaced"
    assert answered_by(site) == "blue"


def test_a_router_that_was_stopped_on_purpose_stays_so(site) -> None:
    stop_router(site.router_state)
    watcher = stopped_router(site.router_state)
    assert watcher is not None
    assert watcher.revive() is None
    assert find_router(site.router_state) is None


def test_a_router_that_was_killed_is_started_when_its_ports_are_free(site) -> None:
    """The kernel takes its time with the last threads of a process that was killed."""
    end(site, signal.SIGKILL)
    threading.Timer(0.5, listening(site.place.admin_port).close).start()
    site.start_router()
    assert answered_by(site) == "blue"


def test_starting_it_again_gives_a_running_one_the_configuration_of_this_version(site, monkeypatch) -> None:
    """One that was started before users' paths were limited still offers them everything."""
    routes, everything = site.router.files.routes, {"match": {"prefix": "/"}}
    document = json.loads(routes.read_text())
    table = document["resources"][0]["virtual_hosts"][0]["routes"]
    document["resources"][0]["virtual_hosts"][0]["routes"] = [{**table[-2], **everything}]
    document["version_info"] = "0:1:an earlier version"
    replace_json(routes, document)
    wait_status(site, 200)
    before = pid_of(site)
    monkeypatch.setattr(xds, "LARGEST_REQUEST_MIB", 3)
    site.start_router()
    wait_status(site, 404)
    assert pid_of(site) == before
    assert "larger than 3 MiB" in site.router.files.listeners.read_text()
    known = find_router(site.router_state)
    assert known is not None
    assert known.place == site.place, "as whoever rolls back, or revives it, will write its routes"


def wait_status(site, status: int) -> None:
    deadline = time.monotonic() + 60
    while ask(site.place.port, "POST", "/v2/logging", b"{}").status != status:
        assert time.monotonic() < deadline
        time.sleep(0.02)
