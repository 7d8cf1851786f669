"""The Envoy adapter against the real proxy: routes, fail-over, TLS, and a router that has ended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import pytest
from hostile_client import ask as ask_once
from hostile_client import generation
from waiting import until

from llm_pipeline.adapters.envoy import xds
from llm_pipeline.adapters.envoy.adapter import ServerCertificate
from llm_pipeline.adapters.envoy.router import router_of, start_router, stop_router
from llm_pipeline.adapters.envoy.xds import replace_json
from llm_pipeline.base import detached
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.waiting import wait_until
from llm_pipeline.canary.router import Patience, RouteState, all_to, router_as_it_is
from llm_pipeline.canary.slots import ServedPlace
from llm_pipeline.operations.guard import Guard

pytestmark = pytest.mark.slow


def split(percent: float, epoch: int = 1, **changes) -> RouteState:
    green = round(percent * 100)
    values = {"weights": {"blue": 10_000 - green, "green": green}, "candidate": "green", "owner": "t", "epoch": epoch}
    return RouteState(**{**values, **changes})


def shift(site, want: RouteState) -> str:
    revision = site.router.write(want, None)
    until(lambda: site.router.converged(revision) is True)
    return revision


def answers(site, count: int, *, stream=False, prompt="one") -> list[tuple[int, Mapping[str, str]]]:
    """Status and headers of the answers to `count` requests, eight at a time."""

    async def all_of_them() -> list[tuple[int, Mapping[str, str]]]:
        limit, body = asyncio.Semaphore(8), {"prompt": prompt, "max_tokens": 4, "stream": stream}
        async with aiohttp.ClientSession() as session:

            async def one() -> tuple[int, Mapping[str, str]]:
                async with limit, session.post(f"{site.url}/v1/completions", json=body) as answer:
                    await answer.read()
                    return answer.status, answer.headers

            return await asyncio.gather(*(one() for _ in range(count)))

    return asyncio.run(all_of_them())


def ask(site, count: int, **how) -> set[tuple[int, str]]:
    """Which statuses were answered, by which servers."""
    return {(status, headers.get("x-served-by", "")) for status, headers in answers(site, count, **how)}


def releases_of(site, count: int) -> set[tuple[str | None, str | None]]:
    """Which servers answered, and which release their answers say gave them."""
    return {(headers.get("x-served-by"), headers.get("x-llm-release")) for _, headers in answers(site, count)}


def both_up(site, drill=None) -> None:
    site.control.drill = drill
    site.control.replace("green", None)
    until(lambda: site.router.usable("green") is True)


def test_an_answer_says_which_release_gave_it_also_where_the_other_one_had_failed(site) -> None:
    both_up(site)
    assert releases_of(site, 3) == {("blue", None)}
    site.router.name_release("blue", "r1")
    site.router.name_release("green", 'r2-"quoted"')
    assert site.router.read()[0].same_traffic(all_to("blue", owner="test", epoch=0))
    shift(site, split(50))
    assert releases_of(site, 60) == {("blue", "r1"), ("green", 'r2-"quoted"')}
    site.control.stop("green")
    assert releases_of(site, 40) == {("blue", "r1")}
    site.router.name_release("blue", "r3")  # at once, without another write of the routes
    until(lambda: releases_of(site, 1) == {("blue", "r3")})
    with socket.create_connection(("127.0.0.1", site.place.port)) as user:
        user.sendall(b"GET /v2/repository/index HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"x-llm-release" not in user.recv(4096), "Envoy's own answer"


def test_routes_to_an_unknown_cluster_are_refused_and_traffic_goes_on(site) -> None:
    shift(site, split(5))
    revision = site.router.write(split(6), None)
    document = json.loads(site.router.files.routes.read_text())
    text = json.dumps(document).replace("green_failover", "purple").replace(revision, "1:99:t")
    replace_json(site.router.files.routes, json.loads(text))
    assert not wait_until(lambda: site.router.converged("1:99:t") is True, 1.0)
    assert ask(site, 50) == {(200, "blue")}


def test_without_an_admin_interface_convergence_is_unknown(site) -> None:
    revision = shift(site, split(5))
    stop_router(site.router_state)
    assert site.router.converged(revision) is None


def test_a_port_in_use_is_a_clear_error(site) -> None:
    stop_router(site.router_state)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", site.place.port))
        other.listen()
        with pytest.raises(ConfigError, match=f"port {site.place.port} of the router is in use"):
            site.start_router()


@pytest.mark.parametrize("stream", [False, True])
def test_a_candidate_that_fails_every_request_fails_none_for_users(site, stream) -> None:
    both_up(site, {"failure_fraction": 1.0})
    shift(site, split(50))
    answered = answers(site, 200, stream=stream)
    assert {(status, headers["x-served-by"]) for status, headers in answered} == {(200, "blue")}
    assert any(headers["x-envoy-attempt-count"] == "2" for _, headers in answered)
    assert ask(site, 8, stream=stream, prompt="x" * (2 * 1024 * 1024)) == {(200, "blue")}
    requests = site.logged()
    candidate = [request for request in requests if request.arm == "green"]
    assert len(candidate) > 50
    assert all(request.fault and not request.lost for request in candidate)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stable_server_that_dies_fails_no_user_while_a_candidate_is_healthy(site, stream) -> None:
    both_up(site)
    shift(site, split(5))
    site.control.stop("blue")
    assert ask(site, 200, stream=stream) == {(200, "green")}
    requests = site.logged()
    blamed = {(request.arm, request.on_trial, request.fault, request.lost) for request in requests}
    assert blamed == {("blue", False, True, False), ("green", True, False, False)}


@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_standby_answers_where_production_is_dead_and_gets_nothing_else(site, stream) -> None:
    both_up(site)
    want = all_to("blue", owner="t", epoch=2, standby="green")
    revision = shift(site, want)
    state, at = site.router.read()
    assert (state.same_traffic(want), state.standby, at) == (True, "green", revision)
    assert ask(site, 30, stream=stream) == {(200, "blue")}
    site.control.stop("blue")
    assert ask(site, 60, stream=stream) == {(200, "green")}
    site.control.ensure("blue")
    assert ask(site, 30, stream=stream) == {(200, "blue")}
    requests = site.logged()
    assert {(request.arm, request.on_trial, request.lost) for request in requests} == {("blue", False, False)}
    assert sum(request.fault for request in requests) == 60, "what another server answered for production"
    shift(site, all_to("blue", owner="t", epoch=3))
    site.control.stop("blue")
    assert {status for status, _ in ask(site, 10, stream=stream)} == {503}, "who stands by nobody gets no user"


@pytest.mark.thorough
def test_a_candidate_that_was_just_ejected_answers_where_stable_dies(site) -> None:
    both_up(site)
    shift(site, split(98))
    site.control.stop("green")
    assert ask(site, 100) == {(200, "blue")}
    until(lambda: site.router.usable("green") is False)
    site.control.ensure("green")
    site.control.stop("blue")
    assert ask(site, 100) == {(200, "green")}


def test_an_error_inside_a_stream_is_seen_in_the_access_log(site) -> None:
    ask(site, 3, stream=True, prompt="break in the middle")
    requests = site.logged()
    assert Counter(request.lost for request in requests) == {True: 3}


def certificate(directory: Path, name: str) -> ServerCertificate:
    """A new certificate for localhost, renamed into place as ACME clients do."""
    directory.mkdir(exist_ok=True)
    found = ServerCertificate(certificate=str(directory / "tls.crt"), key=str(directory / "tls.key"))
    made = ["-out", f"{found.certificate}.new", "-keyout", f"{found.key}.new", "-days", "2", "-subj", f"/CN={name}"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(["openssl", "req", "-x509", *curve, *made], check=True, capture_output=True)
    for path in (found.key, found.certificate):
        Path(f"{path}.new").rename(path)
    return found


def seen_certificate(port: int, protocol: str) -> tuple[str, str | None]:
    """The certificate of a new connection in PEM, and the protocol that was agreed on."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([protocol])
    with socket.create_connection(("127.0.0.1", port), timeout=5) as plain, context.wrap_socket(plain) as stream:
        found = stream.getpeercert(binary_form=True)
        assert found is not None
        return ssl.DER_cert_to_PEM_cert(found), stream.selected_alpn_protocol()


def answers_plain_text(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        try:
            return plain.recv(100).startswith(b"HTTP/")
        except ConnectionResetError:
            return False


def test_the_listener_has_tls_and_takes_a_new_certificate_without_a_restart(site, tmp_path) -> None:
    assert answers_plain_text(site.place.port)
    stop_router(site.router_state)
    tls = certificate(tmp_path / "tls", "first")
    site.place = site.place.model_copy(update={"tls": tls})
    site.start_router()
    for protocol in ("http/1.1", "h2"):
        assert seen_certificate(site.place.port, protocol) == (Path(tls.certificate).read_text(), protocol)
    assert not answers_plain_text(site.place.port)
    old = Path(tls.certificate).read_text()
    certificate(tmp_path / "tls", "second")
    assert Path(tls.certificate).read_text() != old
    until(lambda: seen_certificate(site.place.port, "h2")[0] == Path(tls.certificate).read_text())


def test_users_may_come_from_elsewhere(site) -> None:
    stop_router(site.router_state)
    place = site.place.model_copy(update={"address": "127.0.0.2"})
    start_router(place, site.slots, site.router_state, initial=all_to("blue", owner="t", epoch=0))
    socket.create_connection(("127.0.0.2", place.port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", place.port), timeout=5)


GENERATE = "/v2/models/llm/generate"


def pid_of(site) -> int:
    process = detached.load(site.router.files.record)
    assert process is not None
    return process.pid


def kill(site) -> None:
    process = detached.load(site.router.files.record)
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: not process.alive)


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
    return ask_once(site.place.port, "POST", GENERATE, generation(), {"content-type": "application/json"}).server


def test_a_router_that_was_killed_comes_back_with_its_routes(site) -> None:
    both_up(site)
    shift(site, split(100, epoch=4))
    kill(site)
    watcher = router_as_it_is(site.place, site.slots, site.router_state)
    assert watcher.revive() == "Envoy had ended and was restarted"
    assert watcher.read()[0] == split(100, epoch=4)
    assert answered_by(site) == "green"
    assert watcher.revive() is None


def test_after_settlement_the_guard_starts_a_router_that_was_killed(site) -> None:
    """No canary is there to watch it, and every user is refused."""
    shift(site, all_to("blue", owner="settled", epoch=4))
    kill(site)
    router = router_as_it_is(site.place, site.slots, site.router_state)
    guarded = Guard(ServedPlace(site.store, "", "cpu", router, site.control, Patience()))
    (action,) = guarded.guard(time.time())
    assert (action.what, action.detail) == ("started", "Envoy had ended and was restarted")
    assert answered_by(site) == "blue"
    assert guarded.guard(time.time()) == []


def test_a_router_that_was_stopped_on_purpose_stays_so(site) -> None:
    stop_router(site.router_state)
    watcher = router_of(site.router_state)
    assert watcher is not None
    assert watcher.revive() is None
    assert not watcher.runs


def test_a_router_that_was_killed_is_started_when_its_ports_are_free(site) -> None:
    """The kernel takes its time with the last threads of a process that was killed."""
    kill(site)
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
    known = router_of(site.router_state)
    assert known is not None
    assert known.place == site.place, "as whoever rolls back, or revives it, will write its routes"


def test_new_settings_count_from_the_next_start_and_the_log_says_so(site, caplog) -> None:
    site.start_router()
    assert "settings of its start" not in caplog.text, "they are the same"
    old, site.place = site.place, site.place.model_copy(update={"only_openai": True})
    assert site.start_router().place == old
    assert "settings of its start" in caplog.text


def wait_status(site, status: int) -> None:
    until(lambda: ask_once(site.place.port, "POST", "/v2/logging", b"{}").status == status)
