"""Background users: `python -m llm_pipeline.demo.traffic --url URL --rate 20 --record FILE --prompts FILE`.

Open loop: arrivals are a Poisson process and do not wait for answers, half of them streaming. Runs until SIGTERM or
SIGINT, lets requests in flight end, and keeps a small JSON record up to date: what was sent, answered, failed. In the
last record every request is answered or failed: one without an answer by then is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from llm_pipeline.base.entry import ArgumentParser, entry_point
from llm_pipeline.base.logging import write_json_lines
from llm_pipeline.base.records import Frozen
from llm_pipeline.loadtest.prompts import read_prompts
from llm_pipeline.serving.client import GenerationClient, GenerationRequest

LAST_ANSWERS_SECONDS = 8.0
"""Longest wait for requests in flight at the end; shorter than the grace before a stopped process is killed."""

_RECORD_SECONDS = 0.5
_REASON_CHARACTERS = 120


class TrafficRecord(Frozen):
    """The traffic so far, by outcome.

    Attributes:
        sent: Requests sent.
        ok: Requests answered completely.
        failed: Requests that users lost; sent - ok - failed are in flight.
        reasons: Failures by reason, which says first whether the answer was streamed.
    """

    sent: int = 0
    ok: int = 0
    failed: int = 0
    reasons: dict[str, int] = Field(default={})


class Traffic:
    """Sends requests at a mean rate and counts what becomes of them."""

    def __init__(self, client: GenerationClient, prompts: Sequence[str], rate_per_second: float) -> None:
        self._client = client
        self._prompts = prompts
        self._rate = rate_per_second
        self._draws = random.Random("traffic")  # noqa: S311 - a schedule, not a secret
        self._sent = self._ok = 0
        self._reasons: Counter[str] = Counter()
        self._in_flight: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Send until `stop` is set, then wait for what is in flight."""
        due = time.monotonic()
        while not stop.is_set():
            due += self._draws.expovariate(self._rate)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), max(0.0, due - time.monotonic()))
                break
            task = asyncio.create_task(self._one())
            self._in_flight.add(task)
            task.add_done_callback(self._in_flight.discard)
        if self._in_flight:
            _, late = await asyncio.wait(self._in_flight, timeout=LAST_ANSWERS_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def write_record(self, path: Path) -> None:
        """Replace the record file, by the counts as they are now, at once."""
        failed = sum(self._reasons.values())
        record = TrafficRecord(sent=self._sent, ok=self._ok, failed=failed, reasons=dict(self._reasons))
        temporary = path.with_name(f".{path.name}")
        temporary.write_text(record.model_dump_json(indent=1) + "\n")
        temporary.replace(path)

    async def _one(self) -> None:
        self._sent += 1
        streaming = self._draws.random() < 0.5  # noqa: PLR2004 - half of them
        request = GenerationRequest(
            self._draws.choice(self._prompts), self._draws.randint(4, 8), ignore_eos=True, allow_empty=True
        )
        kind = "streamed" if streaming else "unary"
        try:
            answer = await (self._client.stream(request) if streaming else self._client.generate(request))
        except asyncio.CancelledError:
            self._reasons[f"{kind}: no answer by the end of the traffic"] += 1
            raise
        if answer.ok:
            self._ok += 1
        else:
            self._reasons[f"{kind}: {answer.error[:_REASON_CHARACTERS]}"] += 1


@entry_point
def main(arguments: Sequence[str] | None = None) -> int:
    """Send traffic until SIGTERM or SIGINT."""
    parser = ArgumentParser(prog="llm_pipeline.demo.traffic", description="background users of one endpoint")
    parser.add_argument("--url", required=True, help="base URL of the endpoint")
    parser.add_argument("--rate", type=float, default=20.0, help="mean requests a second")
    parser.add_argument("--record", type=Path, required=True, help="JSON file to keep up to date")
    parser.add_argument("--prompts", type=Path, required=True, help="jsonl with a `prompt` in each line")
    options = parser.parse_args(arguments)
    write_json_lines()
    prompts = [one.text for one in read_prompts(options.prompts)]
    asyncio.run(_serve(options.url, options.rate, options.record, prompts))
    return 0


async def _serve(url: str, rate_per_second: float, record: Path, prompts: Sequence[str]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with GenerationClient(url, timeout_seconds=30.0) as client:
        traffic = Traffic(client, prompts, rate_per_second)
        traffic.write_record(record)
        sending = asyncio.create_task(traffic.run(stop))
        while not sending.done():
            await asyncio.wait({sending}, timeout=_RECORD_SECONDS)
            traffic.write_record(record)
        await sending


if __name__ == "__main__":
    raise SystemExit(main())
