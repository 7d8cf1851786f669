"""What a hostile client sends to the users' port, byte by byte: no library would."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass

HOST = "127.0.0.1"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, HEADERS, RESET, GOAWAY = 0x4, 0x1, 0x3, 0x7
END_STREAM, END_HEADERS = 0x1, 0x4


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        status: 0 when the connection ended without an answer.
        fields: Its headers.
    """

    status: int
    fields: dict[str, str]
    body: bytes

    @property
    def server(self) -> str:
        """Who answered, if a server behind the router did."""
        return self.fields.get("x-served-by", "")


def ask(port: int, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
    """One HTTP/1.1 request, whose path is sent as it is."""
    lines = {"host": "users", "connection": "close", "content-length": str(len(body)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    with socket.create_connection((HOST, port), timeout=20) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before its end
            connection.sendall(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body)
        return _answer(connection)


def ask_in_chunks(port: int, path: str, pieces: Iterator[bytes]) -> Answer:
    """A POST that does not say how long it is."""
    with socket.create_connection((HOST, port), timeout=20) as connection:
        head = f"POST {path} HTTP/1.1\r\nhost: users\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(head.encode())
            for piece in pieces:
                connection.sendall(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            connection.sendall(b"0\r\n\r\n")
        return _answer(connection)


def generation(prompt: str = "one", tokens: int = 4) -> bytes:
    """The body of a request for an answer."""
    return json.dumps({"text_input": prompt, "max_tokens": tokens}).encode()


def _answer(connection: socket.socket) -> Answer:
    data = b""
    with contextlib.suppress(ConnectionResetError, TimeoutError):
        while piece := connection.recv(65536):
            data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
    status = int(lines[0].split()[1]) if lines[0].startswith("HTTP/1.1 ") else 0
    return Answer(status=status, fields=fields, body=body)
