"""A server on a bare socket that does to each connection what a test says."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Script = Callable[[socket.socket, threading.Event], None]
"""Serves a connection; the event says that the test is over."""


@contextmanager
def serving(script: Script, *, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The URL of a server that follows a script with whoever connects, then closes."""
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            secured = tls.wrap_socket(connection, server_side=True) if tls else connection
            with secured:
                script(secured, over)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # of connections: what nobody takes stays away
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # ends `accept`


def says(*pieces: bytes, pause: float = 0.0, repeat_last: bool = False) -> Script:
    """Sends these pieces, whatever was asked, with pauses between them; the last one again and again if asked to."""

    def script(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65536)
        for piece in pieces:
            connection.sendall(piece)
            over.wait(pause)
        while repeat_last and not over.is_set():
            connection.sendall(pieces[-1])
            over.wait(pause)

    return script


def tunnels(script: Script, tls: ssl.SSLContext) -> Script:
    """A proxy that grants a tunnel, and follows a script as the server at its end."""

    def proxy(connection: socket.socket, over: threading.Event) -> None:
        asked = connection.recv(65536)
        assert asked.startswith(b"CONNECT "), asked
        connection.sendall(b"HTTP/1.1 200 Granted\r\nVia: a test\r\n\r\n")
        with tls.wrap_socket(connection, server_side=True) as secured:
            script(secured, over)

    return proxy


def certificate(directory: Path) -> tuple[ssl.SSLContext, Path]:
    """What a server on 127.0.0.1 needs for TLS, and the certificate that its clients trust."""
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    names = ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*request, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate
