"""Background users: `python -m llm_pipeline.demo.traffic --url URL --rate 20 --record FILE --prompts FILE`.

Open loop: arrivals are a Poisson process and do not wait for answers, half of them streaming. Runs until SIGTERM or
SIGINT, lets requests in flight end, and keeps a small JSON record up to date: what was sent, answered, failed. In the
last record every request is answered or failed: one without an answer by then is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from llm_pipeline.base.entry import ArgumentParser, entry_point
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.logging import get_logger, write_json_lines
from llm_pipeline.base.records import Frozen
from llm_pipeline.serving.client import GenerationClient, GenerationRequest

log = get_logger(__name__)

LAST_ANSWERS_SECONDS = 8.0
"""Longest wait for requests in flight at the end; shorter than the grace before a stopped process is killed."""

_RECORD_SECONDS = 0.5
_REASON_CHARACTERS = 120
_ERRORS_KEPT = 20


class FailedRequest(Frozen):
    """One request without a proper answer."""

    sent_at: datetime
    streaming: bool
    reason: str


class TrafficRecord(Frozen):
    """The traffic so far, by outcome.

    Attributes:
        sent: Requests sent.
        ok: Requests answered completely.
        failed: Requests that users lost; sent - ok - failed are in flight.
        reasons: Failures by reason.
        first_failures: The first few failures, with their time.
    """

    started_at: datetime
    rate_per_second: float
    sent: int
    ok: int
    failed: int
    reasons: dict[str, int]
    first_failures: tuple[FailedRequest, ...]


class Traffic:
    """Sends requests at a mean rate and counts what becomes of them."""

    def __init__(
        self,
        client: GenerationClient,
        prompts: Sequence[str],
        *,
        rate_per_second: float,
        seed: int,
        last_answers_seconds: float = LAST_ANSWERS_SECONDS,
    ) -> None:
        self._last_answers_seconds = last_answers_seconds
        self._client = client
        self._prompts = prompts
        self._rate = rate_per_second
        self._draws = random.Random(f"traffic {seed}")  # noqa: S311 - a schedule, not a secret
        self._started_at = datetime.now(UTC)
        self._sent = self._ok = 0
        self._reasons: Counter[str] = Counter()
        self._failures: list[FailedRequest] = []
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
        await self._let_answers_come()

    def record(self) -> TrafficRecord:
        """The counts as they are now."""
        return TrafficRecord(
            started_at=self._started_at,
            rate_per_second=self._rate,
            sent=self._sent,
            ok=self._ok,
            failed=sum(self._reasons.values()),
            reasons=dict(self._reasons),
            first_failures=tuple(self._failures),
        )

    async def _let_answers_come(self) -> None:
        if not self._in_flight:
            return
        _, late = await asyncio.wait(self._in_flight, timeout=self._last_answers_seconds)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _one(self) -> None:
        self._sent += 1
        streaming, sent_at = self._draws.random() < 0.5, datetime.now(UTC)  # noqa: PLR2004 - half of them
        request = GenerationRequest(
            self._draws.choice(self._prompts), self._draws.randint(4, 8), ignore_eos=True, allow_empty=True
        )
        try:
            answer = await (self._client.stream(request) if streaming else self._client.generate(request))
        except asyncio.CancelledError:
            self._failed("no answer by the end of the traffic", sent_at, streaming=streaming)
            raise
        if answer.ok:
            self._ok += 1
        else:
            self._failed(answer.error, sent_at, streaming=streaming)

    def _failed(self, error: str, sent_at: datetime, *, streaming: bool) -> None:
        reason = error[:_REASON_CHARACTERS]
        self._reasons[reason] += 1
        if len(self._failures) < _ERRORS_KEPT:
            self._failures.append(FailedRequest(sent_at=sent_at, streaming=streaming, reason=reason))


def read_prompts(path: Path) -> list[str]:
    """The `prompt` of each line of a jsonl file.

    Raises:
        ConfigError: The file is missing, empty, or a line has no prompt.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            prompts = [str(json.loads(line)["prompt"]) for line in lines if line.strip()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"not a file of prompts: {error}", where=str(path)) from error
    if not prompts:
        raise ConfigError("no prompts", where=str(path))
    return prompts


def write_record(path: Path, record: TrafficRecord) -> None:
    """Replace the record file at once."""
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(record.model_dump_json(indent=1) + "\n")
    temporary.replace(path)


@entry_point
def main(arguments: Sequence[str] | None = None) -> int:
    """Send traffic until SIGTERM or SIGINT."""
    parser = ArgumentParser(prog="llm_pipeline.demo.traffic", description="background users of one endpoint")
    parser.add_argument("--url", required=True, help="base URL of the endpoint")
    parser.add_argument("--rate", type=float, default=20.0, help="mean requests a second")
    parser.add_argument("--record", type=Path, required=True, help="JSON file to keep up to date")
    parser.add_argument("--prompts", type=Path, required=True, help="jsonl with a `prompt` in each line")
    parser.add_argument("--seed", type=int, default=0, help="of arrivals and prompts")
    options = parser.parse_args(arguments)
    write_json_lines()
    asyncio.run(_serve(options, read_prompts(options.prompts)))
    return 0


async def _serve(options: argparse.Namespace, prompts: Sequence[str]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with GenerationClient(options.url, timeout_seconds=30.0) as client:
        traffic = Traffic(client, prompts, rate_per_second=options.rate, seed=options.seed)
        write_record(options.record, traffic.record())
        sending = asyncio.create_task(traffic.run(stop))
        while not sending.done():
            await asyncio.wait({sending}, timeout=_RECORD_SECONDS)
            write_record(options.record, traffic.record())
        await sending


if __name__ == "__main__":
    raise SystemExit(main())
