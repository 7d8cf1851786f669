"""A server of sockets and bytes that does what each prompt says: the misbehaviour of real ones, one request at a time.

A prompt is words: tokens come each `pause` seconds apart (`pause=0.01`), and `break`, `refuse=503`, `hang`... spoil the
answer. What came is kept in `seen`.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any, Self

from loop_thread import LoopThread


def chunk(text: str, so_far: int, reason: str | None = None) -> bytes:
    usage = {"prompt_tokens": 5, "completion_tokens": so_far}
    body = {"model": "llm", "choices": [{"text": text, "finish_reason": reason}], "usage": usage}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class ScriptedServer(LoopThread):
    """A context manager.

    Attributes:
        seen: Bodies of the requests, in order.
        connections: How many were opened.
        departures: Connections that the client closed within an answer.
        closed_when_asked: Kept connections that were closed with a request on its way.
    """

    def __init__(self, *, stall_at: int = 0, stall_seconds: float = 0.0, tls: ssl.SSLContext | None = None) -> None:
        self.seen: list[dict[str, Any]] = []
        self.connections = self.departures = self.closed_when_asked = 0
        self._stall_at, self._stall_seconds = stall_at, stall_seconds
        self._tls = tls
        self._engine: asyncio.Lock | None = None
        self.url = ""
        super().__init__()

    def __enter__(self) -> Self:
        super().__enter__()
        server = self.await_(self._listen())
        scheme = "https" if self._tls else "http"
        self.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return self

    async def _listen(self) -> asyncio.Server:
        self._engine = asyncio.Lock()
        return await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        answered = 0
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
                asked = json.loads(await reader.readexactly(length))
                if "reused" in asked["prompt"] and answered:
                    self.closed_when_asked += 1
                    return
                self.seen.append(asked)
                await self._answer(asked, writer)
                answered += 1
                if "close" in asked["prompt"]:
                    return
        except (asyncio.IncompleteReadError, asyncio.CancelledError):
            return
        except ConnectionError:
            self.departures += 1
        finally:
            writer.close()

    async def _answer(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        said = asked["prompt"]
        await self._stall()
        if "hang" in said:
            await asyncio.sleep(30)
        if "refuse" in said:
            status = int(said.split("refuse=")[1][:3])
            body = b'{"error": "no place"}'
            writer.write(b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
        elif "nonsense" in said:
            writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        else:
            await self._stream(asked, writer)
        await writer.drain()

    async def _stream(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        said, count = asked["prompt"], asked["max_tokens"]
        pause = float(said.split("pause=")[1].split()[0]) if "pause=" in said else 0.0
        pieces = [framed(chunk("", 0))] if "empty first" in said else []
        pieces += [
            framed(chunk(f"w{place} ", place, "length" if place == count else None)) for place in range(1, count + 1)
        ]
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        if "break" in said:
            writer.write(head + b"".join(pieces[: count - 1]))
            writer.close()
            return
        whole = [head, *pieces, framed(b"data: [DONE]\n\n"), b"0\r\n\r\n"]
        if "bytewise" in said:
            whole = [bytes([byte]) for byte in b"".join(whole)]
        for piece in whole if pause or "bytewise" in said else [b"".join(whole)]:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
            if writer.transport.is_closing():
                raise ConnectionResetError

    async def _stall(self) -> None:
        """One request at a time passes here, like an engine without batching."""
        if not self._stall_at or self._engine is None:
            return
        async with self._engine:
            if len(self.seen) == self._stall_at:
                await asyncio.sleep(self._stall_seconds)
