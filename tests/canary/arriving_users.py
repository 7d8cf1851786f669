"""Users that arrive as a Poisson process and do not wait for one another, as a process: SCRIPT PORT RATE RECORD.

What they ask, and how, is the script's own. The record says what became of every request, kind by kind, and of every
failed one when it was sent and when it had failed, by the monotonic clock. What was sent before `settled_until` has
ended, by the same clock. SIGTERM ends the arrivals; the last record accounts for every request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import aiohttp
import grpc.aio

_LONGEST_REASON = 160


_FAILED = (aiohttp.ClientError, grpc.aio.AioRpcError, TimeoutError, OSError, ValueError)


class IncompleteAnswer(Exception):
    """The answer ended without saying that it is whole, or is an error."""


class ArrivingUsers:
    """So many a second, of each kind its share; each waits so long for a whole answer."""

    def __init__(self, rate: float, shares: Mapping[str, float], *, answer_seconds: float, keep_alive: bool) -> None:
        self.rate, self.shares = rate, shares
        self.answer_seconds, self.keep_alive = answer_seconds, keep_alive
        self.asks: dict[str, Callable[[], Awaitable[str]]] = {}
        self.sent: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.servers: Counter[str] = Counter()
        self.failures: list[dict[str, str | float]] = []
        self.in_flight: set[asyncio.Task[None]] = set()
        self.waiting: dict[int, float] = {}
        self.arriving = True

    async def connect(self, stack: contextlib.AsyncExitStack) -> None:
        """Open what every request uses."""
        connector = aiohttp.TCPConnector(limit=0, force_close=not self.keep_alive)
        timeout = aiohttp.ClientTimeout(total=self.answer_seconds)
        self.session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, timeout=timeout))

    async def run(self, stop: asyncio.Event) -> None:
        """Send until `stop` is set, then wait for the answers."""
        async with contextlib.AsyncExitStack() as stack:
            await self.connect(stack)
            due = time.monotonic()
            while not stop.is_set():
                due += random.expovariate(self.rate)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), max(0.0, due - time.monotonic()))
                kind = random.choices(list(self.shares), list(self.shares.values()))[0]  # noqa: S311 - no secret
                task = asyncio.create_task(self._one(kind))
                self.in_flight.add(task)
                task.add_done_callback(self.in_flight.discard)
            await asyncio.gather(*self.in_flight)
        self.arriving = False

    async def _one(self, kind: str) -> None:
        number, sent_at = self.sent.total(), time.monotonic()
        self.sent[kind] += 1
        self.waiting[number] = sent_at
        try:
            self.servers[await self.asks[kind]()] += 1
            self.answered[kind] += 1
        except (*_FAILED, IncompleteAnswer) as error:
            self.failed[kind] += 1
            words = error.code().name if isinstance(error, grpc.aio.AioRpcError) else str(error)
            reason = f"{kind}: {type(error).__name__} {words}"[:_LONGEST_REASON]
            self.reasons[reason] += 1
            failure = {"kind": kind, "sent_at": sent_at, "failed_at": time.monotonic(), "reason": reason}
            self.failures.append(failure)
        finally:
            del self.waiting[number]

    def record(self) -> str:
        """As JSON."""
        counts = {"sent": self.sent, "answered": self.answered, "failed": self.failed}
        details = {"reasons": self.reasons, "servers": self.servers, "failures": self.failures}
        return json.dumps({**counts, **details, "settled_until": self._settled_until()})

    def _settled_until(self) -> float:
        return min(self.waiting.values(), default=time.monotonic() if self.arriving else math.inf)


async def serve(users: ArrivingUsers, record: Path, *, record_seconds: float) -> None:
    """Have the users come until SIGTERM; the record is replaced every so many seconds."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    running = asyncio.create_task(users.run(stop))
    done = False
    while not done:
        done = bool((await asyncio.wait({running}, timeout=record_seconds))[0])
        temporary = record.with_name(f".{record.name}")
        temporary.write_text(users.record())
        temporary.replace(record)
    await running
