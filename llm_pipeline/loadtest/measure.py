"""The open-loop runner: sends every request at its time, whatever the earlier ones do, and times it from then."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from llm_pipeline.loadtest.records import RequestRecord
from llm_pipeline.loadtest.workload import Schedule, ScheduledRequest
from llm_pipeline.logging import get_logger
from llm_pipeline.serving.client import Generation, GenerationClient

_WAKE_UP_SECONDS = 0.001  # event loops wake up to a millisecond late
_log = get_logger(__name__)


@dataclass(frozen=True)
class Measurement:
    """A load test's raw outcome.

    Attributes:
        records: One for each scheduled request, in order.
        window_seconds: From the start of the window to its end, or to the last answer if that came later.
        warmup_errors: Errors of the warm-up requests.
    """

    records: tuple[RequestRecord, ...]
    window_seconds: float
    warmup_errors: tuple[str, ...] = ()


async def measure(base_url: str, schedule: Schedule, *, timeout_seconds: float = 60.0) -> Measurement:
    """Warm the server up, then send the schedule.

    Args:
        base_url: The endpoint.
        schedule: What to send.
        timeout_seconds: A request that has no whole answer by then has failed.
    """
    async with GenerationClient(base_url, timeout_seconds=timeout_seconds) as client:
        warmup = [await client.stream(request) for request in schedule.warmup]
        if errors := tuple(answer.error for answer in warmup if not answer.ok):
            _log.warning("warm-up requests failed", failed=len(errors), first=errors[0])
        with _no_garbage_collection():
            start = time.perf_counter() + 0.05
            records = await _send_all(client, schedule.requests, start)
            end = time.perf_counter()
    return Measurement(records, max(end - start, schedule.duration_seconds), errors)


async def _send_all(
    client: GenerationClient, requests: tuple[ScheduledRequest, ...], start: float
) -> tuple[RequestRecord, ...]:
    tasks: list[asyncio.Task[RequestRecord]] = []
    for scheduled in requests:
        await _sleep_until(start + scheduled.arrives_at)
        tasks.append(asyncio.create_task(_send(client, scheduled, start)))
    return tuple(await asyncio.gather(*tasks))


async def _send(client: GenerationClient, scheduled: ScheduledRequest, start: float) -> RequestRecord:
    answer = await client.stream(scheduled.request)
    return record_of(scheduled, answer, answer.sent_at - (start + scheduled.arrives_at))


def record_of(scheduled: ScheduledRequest, answer: Generation, lag_seconds: float) -> RequestRecord:
    """The record of an answer that was asked for `lag_seconds` after its scheduled arrival."""
    first = answer.first_token_seconds
    gaps = [later - earlier for earlier, later in itertools.pairwise(answer.chunk_seconds)]
    return RequestRecord(
        number=scheduled.number,
        arrives_at=scheduled.arrives_at,
        lag_seconds=lag_seconds,
        first_token_seconds=None if first is None else first + lag_seconds,
        total_seconds=answer.total_seconds + lag_seconds,
        longest_gap_seconds=max(gaps, default=0.0),
        prompt_characters=len(scheduled.request.prompt),
        asked_tokens=scheduled.request.maximum_tokens,
        output_tokens=answer.output_tokens,
        status=answer.status,
        error=answer.error,
    )


async def _sleep_until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - time.perf_counter() - _WAKE_UP_SECONDS))
    while time.perf_counter() < moment:  # noqa: ASYNC110 - a clock, not a condition
        await asyncio.sleep(0)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A full collection stops the client for tens of milliseconds, which would look like the server's latency."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
