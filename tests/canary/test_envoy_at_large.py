"""Copies for an idle slot, TLS on the listener, and an Envoy that somebody else started, all with the real proxy."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_envoy import ask, both_up, shift, split

from llm_pipeline.adapters.envoy.adapter import ExistingEnvoyPlace, ServerCertificate
from llm_pipeline.adapters.envoy.existing import fed_router, feed_router
from llm_pipeline.adapters.envoy.process import start_router, stop_router
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.canary.open_router import open_router, router_as_it_is
from llm_pipeline.canary.router import Mirror, RouterUnavailable, RouteState, all_to

pytestmark = pytest.mark.slow


def mirrored(share: int, epoch: int = 1) -> RouteState:
    return all_to("blue", owner="t", epoch=epoch).model_copy(update={"mirror": Mirror(slot="green", share=share)})


def copies(site) -> int:
    """Copies that were sent to green."""
    statistics = site.router.admin("/stats?filter=^cluster.green_mirror.upstream_rq_total$")
    return int(statistics.rpartition(": ")[2])


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_share_of_the_requests_is_copied_and_nobody_else_notices(site) -> None:
    both_up(site)
    want = mirrored(2_500)
    revision = shift(site, want)
    read, at = site.router.read()
    assert (read.mirror, read.same_traffic(want), at) == (want.mirror, True, revision)
    assert {(status, server) for status, server, _ in ask(site, 800)} == {(200, "blue")}
    assert 120 < copies(site) < 280, "within six standard deviations of 200"
    before = site.router.statistics()["green"]
    assert (before.attempts, before.failures) == (0, 0), "copies are no users' requests"
    assert {(request.arm, request.fault) for request in site.logged()} == {("blue", False)}


def test_copying_or_not_is_another_traffic() -> None:
    assert not mirrored(100).same_traffic(all_to("blue", owner="t", epoch=1))
    assert mirrored(100).same_traffic(mirrored(100, epoch=9))


def test_a_slot_with_users_gets_no_copies() -> None:
    with pytest.raises(ValueError, match="already has users' requests"):
        RouteState.model_validate({**split(5).model_dump(), "mirror": {"slot": "green", "share": 100}})


def test_a_dead_mirror_disturbs_nobody(site) -> None:
    shift(site, mirrored(10_000))
    answers = ask(site, 200)
    assert {(status, server, attempts) for status, server, attempts in answers} == {(200, "blue", "1")}


def test_a_mirror_that_hangs_disturbs_nobody_and_holds_few_requests(site) -> None:
    both_up(site)
    shift(site, mirrored(10_000))
    os.kill(site.control.pid("green"), signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert {(status, server) for status, server, _ in ask(site, 400)} == {(200, "blue")}
        assert time.monotonic() - began < 30
        held = site.router.admin("/stats?filter=^cluster.green_mirror.upstream_rq_active$")
        assert 0 < int(held.rpartition(": ")[2]) <= 64
    finally:
        os.kill(site.control.pid("green"), signal.SIGCONT)


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
    wait_for(lambda: seen_certificate(site.place.port, "h2")[0] == Path(tls.certificate).read_text())


@contextmanager
def somebody_elses(bootstrap: Path) -> Iterator[None]:
    """An Envoy that runs already."""
    envoy = Path(sys.executable).with_name("envoy")
    options = ["--disable-hot-restart", "--concurrency", "1", "--file-flush-interval-msec", "500"]
    process = subprocess.Popen([envoy, "-c", bootstrap, *options, "--log-level", "warning"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_an_envoy_that_runs_already_is_fed_through_its_directory(site, tmp_path) -> None:
    stop_router(site.router_state)
    state = tmp_path / "fed"
    place = ExistingEnvoyPlace(
        kind="existing_envoy", directory=str(tmp_path / "xds"), admin_url=f"http://127.0.0.1:{site.place.admin_port}",
        port=site.place.port, access_log=str(tmp_path / "access.jsonl"),
    )  # fmt: skip
    initial = all_to("blue", owner="first-start", epoch=0)
    with pytest.raises(RouterUnavailable, match=r"Envoy does not answer.*start it with --config-path") as raised:
        feed_router(place, site.slots, state, initial=initial, wait_seconds=0.2)
    assert str(state / "bootstrap.json") in raised.value.hint
    with somebody_elses(state / "bootstrap.json"):
        wait_for(router_as_it_is(place, site.slots, state).ready)
        site.router = open_router(place, site.slots, state, initial=initial)
        both_up(site)
        shift(site, split(50))
        answers = ask(site, 100)
        assert {server for _, server, _ in answers} == {"blue", "green"}
        assert open_router(place, site.slots, state, initial=initial).read()[0] == split(50), "it keeps its routes"
        assert {request.arm for request in site.logged()} == {"blue", "green"}
    way_back = router_as_it_is(place, site.slots, state)
    way_back.write(all_to("blue", owner="rollback", epoch=2), None)
    with somebody_elses(state / "bootstrap.json"):
        wait_for(way_back.ready)
        assert {server for _, server, _ in ask(site, 30)} == {"blue"}


@pytest.mark.parametrize(("host", "told"), [("10.0.0.5", "10.0.0.5:{}"), ("fd00::5", "[fd00::5]:{}")])
def test_slots_on_another_host_are_known_in_the_log_by_its_address(site, tmp_path, host: str, told: str) -> None:
    """An address that is no slot's would count every answer as one that the other slot had to give."""
    place = ExistingEnvoyPlace(
        kind="existing_envoy", directory=str(tmp_path / "xds"), admin_url="http://127.0.0.1:9", port=8443,
        access_log=str(tmp_path / "log"), slot_host=host,
    )  # fmt: skip
    router = fed_router(place, site.slots, tmp_path)
    assert router.slot_of_address(told.format(site.slots["green"].http)) == "green"
    assert router.slot_of_address(told.format(site.slots["blue"].grpc)) == "blue"
    assert router.slot_of_address(f"127.0.0.1:{site.slots['blue'].http}") is None


def test_a_directory_that_cannot_be_written_is_a_clear_error(site, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    place = ExistingEnvoyPlace(
        kind="existing_envoy", directory=str(tmp_path / "file" / "xds"), admin_url="http://127.0.0.1:9901", port=8443,
        access_log=str(tmp_path / "access.jsonl"),
    )  # fmt: skip
    with pytest.raises(ConfigError, match="cannot be written"):
        open_router(place, site.slots, tmp_path / "fed", initial=all_to("blue", owner="t", epoch=0))


def test_users_may_come_from_elsewhere(site) -> None:
    stop_router(site.router_state)
    place = site.place.model_copy(update={"address": "127.0.0.2"})
    start_router(place, site.slots, site.router_state, initial=all_to("blue", owner="t", epoch=0))
    socket.create_connection(("127.0.0.2", place.port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", place.port), timeout=5)
