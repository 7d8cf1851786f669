"""Users of all kinds at once, as a process: mixed_users.py PORT RATE RECORD.

Unary HTTP, server-sent events, unary gRPC and gRPC streams, as a Poisson process that does not wait for answers. The
record says what became of every request, kind by kind, and which server gave the answer. SIGTERM ends the arrivals;
the last record accounts for every request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import grpc.aio

SHARES = {"unary": 0.5, "sse": 0.2, "grpc unary": 0.2, "grpc stream": 0.1}
ANSWER_SECONDS = float(os.environ.get("USERS_WAIT_SECONDS", "30"))
"""A user waits so long for a whole answer."""

_RECORD_SECONDS = 0.1
_CHANNELS = 4
_SERVICE = "/inference.GRPCInferenceService/"
_TOKENS = 6


class IncompleteAnswer(Exception):
    """The answer ended without saying that it is whole, or is an error."""


class Users:
    def __init__(self, port: int, rate: float) -> None:
        self.rate = rate
        self.url = f"http://127.0.0.1:{port}/v2/models/llm"
        self.address = f"127.0.0.1:{port}"
        self.sent: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.servers: Counter[str] = Counter()
        self.in_flight: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        async with contextlib.AsyncExitStack() as stack:
            connector = aiohttp.TCPConnector(limit=0)
            timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
            self.session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, timeout=timeout))
            self.channels = [
                await stack.enter_async_context(
                    grpc.aio.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])
                )
                for _ in range(_CHANNELS)
            ]
            due = time.monotonic()
            while not stop.is_set():
                due += random.expovariate(self.rate)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), max(0.0, due - time.monotonic()))
                kind = random.choices(list(SHARES), list(SHARES.values()))[0]  # noqa: S311
                task = asyncio.create_task(self._one(kind))
                self.in_flight.add(task)
                task.add_done_callback(self.in_flight.discard)
            await asyncio.gather(*self.in_flight)

    async def _one(self, kind: str) -> None:
        asks: dict[str, Callable[[], Awaitable[str]]] = {
            "unary": self._unary,
            "sse": self._events,
            "grpc unary": self._grpc_unary,
            "grpc stream": self._grpc_stream,
        }
        self.sent[kind] += 1
        try:
            self.servers[await asks[kind]()] += 1
            self.answered[kind] += 1
        except (aiohttp.ClientError, grpc.aio.AioRpcError, IncompleteAnswer, TimeoutError, OSError) as error:
            self.failed[kind] += 1
            reason = error.code().name if isinstance(error, grpc.aio.AioRpcError) else str(error)
            self.reasons[f"{kind}: {type(error).__name__} {reason}"[:160]] += 1

    async def _unary(self) -> str:
        async with self.session.post(f"{self.url}/generate", json=_body()) as response:
            answer = await response.json()
            if response.status != 200 or answer["finish_reason"] != "length":
                raise IncompleteAnswer(f"{response.status} {answer}")
            return response.headers["x-served-by"]

    async def _events(self) -> str:
        async with self.session.post(f"{self.url}/generate_stream", json=_body()) as response:
            chunks = [line[5:] async for line in response.content if line.startswith(b"data:")]
            if response.status != 200 or not chunks or json.loads(chunks[-1]).get("finish_reason") != "length":
                raise IncompleteAnswer(f"{response.status} after {len(chunks)} chunks")
            return response.headers["x-served-by"]

    async def _grpc_unary(self) -> str:
        call = random.choice(self.channels).unary_unary(f"{_SERVICE}ModelInfer")  # noqa: S311
        answer: bytes = await call(b"one", timeout=ANSWER_SECONDS)
        return answer.decode()

    async def _grpc_stream(self) -> str:
        call = random.choice(self.channels).stream_stream(f"{_SERVICE}ModelStreamInfer")(timeout=ANSWER_SECONDS)  # noqa: S311
        await call.write(b"one")
        await call.done_writing()
        answers = [answer async for answer in call]
        if len(answers) != _TOKENS:
            raise IncompleteAnswer(f"{len(answers)} of {_TOKENS} tokens")
        return bytes(answers[-1]).decode()

    def record(self) -> str:
        counts = {"sent": self.sent, "answered": self.answered, "failed": self.failed}
        return json.dumps({**counts, "reasons": self.reasons, "servers": self.servers})


def _body() -> dict[str, object]:
    return {"text_input": "one", "max_tokens": _TOKENS}


async def main() -> None:
    users, record = Users(int(sys.argv[1]), float(sys.argv[2])), Path(sys.argv[3])
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    running = asyncio.create_task(users.run(stop))
    done = False
    while not done:
        done = bool((await asyncio.wait({running}, timeout=_RECORD_SECONDS))[0])
        temporary = record.with_name(f".{record.name}")
        temporary.write_text(users.record())
        temporary.replace(record)
    await running


if __name__ == "__main__":
    asyncio.run(main())
