"""Users of a real Triton, as a process: triton_users.py PORT RATE RECORD WAIT_SECONDS KIND...

Kinds: unary, sse; each request is one of those named. They arrive as a Poisson process and
leave after WAIT_SECONDS. The record says what became of every request. SIGTERM ends the arrivals; the last record
accounts for all.
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

WORDS = ("amber", "birch", "cedar", "dune", "ember", "fjord", "glade", "heron")
TOKENS = 12
RECORD_SECONDS = 0.2


class Refused(Exception):
    """The answer is an error, or did not end."""


class Users:
    def __init__(self, port: int, wait_seconds: float, kinds: list[str]) -> None:
        self.url = f"http://127.0.0.1:{port}/v1/completions"
        self.wait_seconds, self.kinds = wait_seconds, kinds
        self.sent = self.answered = 0
        self.reasons: Counter[str] = Counter()
        self.in_flight: set[asyncio.Task[None]] = set()

    async def run(self, rate: float, stop: asyncio.Event) -> None:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as self.session:
            due = time.monotonic()
            while not stop.is_set():
                due += random.expovariate(rate)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                task = asyncio.create_task(self._one(random.choice(self.kinds)))  # noqa: S311
                self.in_flight.add(task)
                task.add_done_callback(self.in_flight.discard)
            await asyncio.gather(*self.in_flight)

    async def _one(self, kind: str) -> None:
        self.sent += 1
        prompt = " ".join(random.choices(WORDS, k=6))  # noqa: S311
        ask = {"unary": self._unary, "sse": self._sse}[kind]
        try:
            await asyncio.wait_for(ask(prompt), self.wait_seconds)
            self.answered += 1
        except TimeoutError:
            self.reasons[f"{kind}: left after {self.wait_seconds:g} s"] += 1
        except (aiohttp.ClientError, Refused, OSError) as error:
            self.reasons[f"{kind}: {type(error).__name__} {error}"[:160]] += 1

    async def _unary(self, prompt: str) -> None:
        async with self.session.post(self.url, json=body(prompt)) as response:
            if response.status != 200:
                raise Refused(await response.text())
            await response.read()

    async def _sse(self, prompt: str) -> None:
        async with self.session.post(self.url, json={**body(prompt), "stream": True}) as response:
            chunks = [line async for line in response.content if line.startswith(b"data:")]
            if response.status != 200 or chunks[-1:] != [b"data: [DONE]\n"]:
                raise Refused(f"{response.status} {chunks[-1:]}")

    def record(self) -> str:
        failed = sum(self.reasons.values())
        return json.dumps({"sent": self.sent, "ok": self.answered, "failed": failed, "reasons": self.reasons})


def body(prompt: str) -> dict[str, object]:
    return {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}


async def main() -> None:
    port, rate, record, wait_seconds, *kinds = sys.argv[1:]
    users, stop = Users(int(port), float(wait_seconds), kinds), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    running, done = asyncio.create_task(users.run(float(rate), stop)), False
    while not done:
        done = bool((await asyncio.wait({running}, timeout=RECORD_SECONDS))[0])
        temporary = Path(record).with_suffix(".new")
        temporary.write_text(users.record())
        temporary.replace(record)
    await running


if __name__ == "__main__":
    asyncio.run(main())
