"""A canary whose sessions stick, with a real controller behind a real proxy."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from threading import Event, Thread

import aiohttp
import pytest
from canary_site import FAST_POLICY

from llm_pipeline.base.verdict import Verdict

pytestmark = pytest.mark.slow

POLICY = {**FAST_POLICY, "unit": "session", "session_header": "x-user", "session_seconds": 0.5}
REQUESTS_A_SESSION = 4


async def visit(url: str, over: Event) -> None:
    """Sessions of four requests, ten of them a second."""

    async def session_of(client: aiohttp.ClientSession, name: str) -> None:
        for _ in range(REQUESTS_A_SESSION):
            body = {"prompt": "one", "max_tokens": 4, "stream": True}
            async with client.post(url, json=body, headers={"x-user": name}) as answer:
                await answer.read()

    async with aiohttp.ClientSession() as client, asyncio.TaskGroup() as sessions:
        for number in itertools.count():
            if over.is_set():
                return
            sessions.create_task(session_of(client, f"user-{number}"))
            await asyncio.sleep(0.1)


@pytest.fixture
def visitors(site) -> Iterator[None]:
    over = Event()
    thread = Thread(target=lambda: asyncio.run(visit(f"{site.url}/v1/completions", over)))
    thread.start()
    yield
    over.set()
    thread.join(60)


@pytest.mark.usefixtures("visitors")
def test_a_step_counts_sessions_and_not_their_requests(site) -> None:
    judgement = site.step(50, policy={**POLICY, "steps_percent": [50, 100]})
    assert judgement.verdict is Verdict.GO, judgement
    step = site.record().analysis.step
    enough = next(fact for fact in judgement.evidence if fact.unit == "sessions")
    assert enough.measured == step.split.candidate >= 10
    requests = step.candidate.requests + step.stable.requests
    assert requests >= 2 * step.split.total, "sessions that are still observed have requests, too"
    metrics = {metric.name: metric for metric in site.record().analysis.metrics}
    assert metrics["slow tokens"].candidate_units == metrics["errors"].candidate_units == step.split.candidate
