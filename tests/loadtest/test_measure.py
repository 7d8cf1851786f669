import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from llm_pipeline.config.policy import LoadTestPolicy, ServiceLevel
from llm_pipeline.config.workload import Workload
from llm_pipeline.loadtest.gate import judge_load_test
from llm_pipeline.loadtest.measure import Measurement, measure
from llm_pipeline.loadtest.workload import make_schedule
from llm_pipeline.verdict import Verdict

WORKLOAD = Workload(
    prompts="p.jsonl", rate_per_second=100, duration_seconds=2, output_tokens=(2, 4), warmup_requests=3, seed=3
)
SCHEDULE = make_schedule(WORKLOAD, [f"prompt {number}" for number in range(300)])
POLICY = LoadTestPolicy(
    service_level=ServiceLevel(first_token_milliseconds=250, end_to_end_milliseconds=500), minimum_requests=50
)


def chunk(text: str, reason: str = "") -> bytes:
    body = {"text_output": text, "output_tokens": 1, "finish_reason": reason, "served_version": 1}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


class Server:
    """Serves one request at a time, like an engine without batching; `before` runs while it holds the engine."""

    def __init__(self, before: Callable[[int], Awaitable[None]]) -> None:
        self.before, self.engine, self.served = before, asyncio.Lock(), 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
        async with self.engine:
            self.served += 1
            await self.before(self.served)
        await stream.prepare(request)
        for left in range(asked["max_tokens"], 0, -1):
            await stream.write(chunk("word ", "" if left > 1 else "length"))
        return stream


def run(before: Callable[[int], Awaitable[None]]) -> Measurement:
    async def both() -> Measurement:
        application = web.Application()
        application.router.add_post("/v2/models/llm/generate_stream", Server(before).answer)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        try:
            return await measure(f"http://127.0.0.1:{port}", SCHEDULE)
        finally:
            await runner.cleanup()

    return asyncio.run(both())


async def at_once(served: int) -> None:
    pass


async def stall_once(served: int) -> None:
    if served == len(SCHEDULE.warmup) + 100:
        await asyncio.sleep(1.0)


def test_every_scheduled_request_is_sent_at_its_time_and_recorded():
    measurement = run(at_once)
    assert [record.number for record in measurement.records] == list(range(len(SCHEDULE.requests)))
    assert [record.arrives_at for record in measurement.records] == [s.arrives_at for s in SCHEDULE.requests]
    assert not [record.error for record in measurement.records if record.error]
    assert all(record.lag_seconds >= 0 for record in measurement.records)
    assert all(0 < record.first_token_seconds <= record.total_seconds for record in measurement.records)
    assert all(record.output_tokens == record.asked_tokens for record in measurement.records)


def test_a_stalled_server_is_charged_for_the_arrivals_that_queued_meanwhile():
    """Coordinated omission: a closed-loop client would have recorded one slow request here, of about 200."""
    records = run(stall_once).records
    stalled = records[99]
    queued = [r for r in records if stalled.arrives_at < r.arrives_at < stalled.arrives_at + 0.9]
    assert stalled.total_seconds > 0.95
    assert len(queued) > 60, "the client did not wait for the stalled request"
    for record in queued:
        owed = stalled.arrives_at + 1.0 - record.arrives_at
        assert record.first_token_seconds >= owed - 0.05, "each waited until the stall was over"
    assert sum(record.lag_seconds < 0.05 for record in queued) > 0.9 * len(queued), "and was sent in time itself"
    assert judge_load_test(records, POLICY).verdict is Verdict.NO_GO


def test_the_clients_own_delay_counts_as_latency_and_voids_the_run():
    async def block_everything(served: int) -> None:
        if served == len(SCHEDULE.warmup) + 50:
            time.sleep(0.6)  # noqa: ASYNC251 - server and client share this event loop: the client itself is stopped

    records = run(block_everything).records
    late = [record for record in records if record.lag_seconds > 0.1]
    assert late
    assert all(record.first_token_seconds > record.lag_seconds for record in late)
    judgement = judge_load_test(records, POLICY)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "could not keep up" in judgement.summary


def test_a_broken_stream_is_an_error_of_that_request_only():
    async def break_some(served: int) -> None:
        if served % 10 == 0:
            raise web.HTTPServiceUnavailable(text='{"error": "queue full"}', content_type="application/json")

    records = run(break_some).records
    failed = [record for record in records if record.error]
    assert len(failed) == pytest.approx(len(records) / 10, abs=2)
    assert {record.error for record in failed} == {"HTTP 503: queue full"}
    assert judge_load_test(records, POLICY).verdict is Verdict.NO_GO
