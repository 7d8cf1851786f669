"""A server on a bare socket that does to each connection what a test says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Script = Callable[[socket.socket, threading.Event], None]
"""Serves a connection; the event says that the test is over."""


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """The URL of a server that follows a script with whoever connects, then closes."""
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            script(connection, over)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # of connections: what nobody takes stays away
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
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
