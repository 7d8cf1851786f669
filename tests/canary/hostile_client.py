"""What a hostile client sends to the users' port, byte by byte: no library would."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass

HOST = "127.0.0.1"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, HEADERS, RESET = 0x4, 0x1, 0x3
END_STREAM, END_HEADERS = 0x1, 0x4
MAX_CONCURRENT_STREAMS = 0x3


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


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame of HTTP/2 (RFC 9113, section 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def get_headers(path: str) -> bytes:
    """The header fields of a GET, without compression (RFC 7541, section 6.2.2)."""
    fields = {":method": "GET", ":scheme": "http", ":path": path, ":authority": "users"}
    return b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )


def server_settings(connection: socket.socket) -> dict[int, int]:
    """What a server allows on a connection of HTTP/2, from its first frame."""
    with connection.makefile("rb", buffering=0) as stream:
        head = stream.read(9)
        assert head[3] == SETTINGS
        payload = stream.read(int.from_bytes(head[:3], "big"))
    pairs = (payload[at : at + 6] for at in range(0, len(payload), 6))
    return {int.from_bytes(pair[:2], "big"): int.from_bytes(pair[2:], "big") for pair in pairs}


def is_closed(connection: socket.socket, seconds: float) -> bool:
    """Whether the other side ends it, and says nothing more for so long before that."""
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


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
