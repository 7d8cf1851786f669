"""Users of a chaos run, as a process: canary_chaos_users.py PORT RATE RECORD.

Unary requests and streams over HTTP, as a Poisson process that does not wait for answers. The record says what became
of each kind, and of every failed request when it was sent and when it had failed, by the monotonic clock. SIGTERM ends
the arrivals; the last record accounts for every request.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import aiohttp

ANSWER_SECONDS = 60.0
TOKENS = 4
RECORD_SECONDS = 0.5


class Users:
    """What they sent, and what they were answered."""

    def __init__(self, port: int, rate: float) -> None:
        self._url = f"http://127.0.0.1:{port}/v2/models/llm"
        self._rate = rate
        self._sent: Counter[str] = Counter()
        self._answered: Counter[str] = Counter()
        self._failures: list[dict[str, str | float]] = []
        self._in_flight: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Send until `stop` is set, then wait for the answers."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            while not stop.is_set():
                await asyncio.sleep(random.expovariate(self._rate))
                kind = "unary" if random.random() < 0.8 else "stream"  # noqa: S311 - a draw, no secret
                task = asyncio.create_task(self._one(session, kind))
                self._in_flight.add(task)
                task.add_done_callback(self._in_flight.discard)
            await asyncio.gather(*self._in_flight)

    async def _one(self, session: aiohttp.ClientSession, kind: str) -> None:
        self._sent[kind] += 1
        sent_at = time.monotonic()
        try:
            problem = await (self._unary(session) if kind == "unary" else self._stream(session))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            problem = f"{type(error).__name__} {error}"
        if problem:
            failure = {"kind": kind, "sent_at": sent_at, "failed_at": time.monotonic(), "reason": problem[:160]}
            self._failures.append(failure)
        else:
            self._answered[kind] += 1

    async def _unary(self, session: aiohttp.ClientSession) -> str:
        async with session.post(f"{self._url}/generate", json=_body()) as response:
            text = await response.text()
            return "" if response.status == 200 and " a b" in text else f"{response.status} {text}"

    async def _stream(self, session: aiohttp.ClientSession) -> str:
        async with session.post(f"{self._url}/generate_stream", json={**_body(), "stream": True}) as response:
            chunks = [line async for line in response.content if line.startswith(b"data:")]
            return "" if response.status == 200 and chunks else f"{response.status}, {len(chunks)} chunks"

    def record(self) -> str:
        """As JSON."""
        return json.dumps({"sent": self._sent, "answered": self._answered, "failures": self._failures})


def _body() -> dict[str, object]:
    return {"text_input": "a b", "max_tokens": TOKENS}


async def main() -> None:
    """Send until SIGTERM."""
    users, record = Users(int(sys.argv[1]), float(sys.argv[2])), Path(sys.argv[3])
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    running = asyncio.create_task(users.run(stop))
    done = False
    while not done:
        done = bool((await asyncio.wait({running}, timeout=RECORD_SECONDS))[0])
        temporary = record.with_name(f".{record.name}")
        temporary.write_text(users.record())
        temporary.replace(record)
    await running


if __name__ == "__main__":
    asyncio.run(main())
