"""Copies for an idle slot, TLS on the listener, and an Envoy that somebody else started, all with the real proxy."""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_pipeline.adapters.envoy.adapter import ServerCertificate
from llm_pipeline.adapters.envoy.router import start_router, stop_router
from llm_pipeline.canary.router import all_to

pytestmark = pytest.mark.slow


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


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


def test_users_may_come_from_elsewhere(site) -> None:
    stop_router(site.router_state)
    place = site.place.model_copy(update={"address": "127.0.0.2"})
    start_router(place, site.slots, site.router_state, initial=all_to("blue", owner="t", epoch=0))
    socket.create_connection(("127.0.0.2", place.port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", place.port), timeout=5)
