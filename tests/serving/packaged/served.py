"""How the tests of served models talk to a real server."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx

from llm_pipeline.config.target import EngineLimits, Target
from llm_pipeline.serving.client import Generation, GenerationClient, GenerationRequest
from llm_pipeline.serving.triton_server import RunningServer, stop_server


def cpu_target(sequences: int, queued: int, blocks: int) -> Target:
    """A target of OpenVINO that takes so many requests at a time, lets so many wait, and has so large a KV cache."""
    limits = EngineLimits(maximum_sequences=sequences, maximum_queued_requests=queued, kv_cache_blocks=blocks)
    return Target(name="cpu", accelerator="cpu", accelerator_count=0, engine="openvino_cpu", limits=limits)


def stop(server: RunningServer) -> None:
    """End it, and what it left."""
    stop_server(server.process.log.parent)


def ask(server: RunningServer, *requests: GenerationRequest, verb: str = "generate") -> Any:
    """The answers of requests sent together; of a single one its answer alone."""

    async def together() -> list[Generation]:
        async with GenerationClient.of(server.endpoint) as client:
            return await asyncio.gather(*(getattr(client, verb)(request) for request in requests))

    answers = asyncio.run(together())
    return answers[0] if len(requests) == 1 else answers


def leave(server: RunningServer, request: GenerationRequest) -> None:
    """Ask for a stream, and go away once it has begun."""

    async def left() -> None:
        async with GenerationClient.of(server.endpoint) as client:
            (await client.open_stream(request)).close()

    asyncio.run(left())


def post(
    server: RunningServer, body: dict[str, Any] | bytes, *, model: str = "llm", verb: str = "generate"
) -> tuple[int, str]:
    """Status and text of a plain HTTP call."""
    content = body if isinstance(body, bytes) else json.dumps(body)
    answer = httpx.post(f"{server.http_url}/v2/models/{model}/{verb}", content=content, timeout=30)
    return answer.status_code, answer.text


def metric(server: RunningServer, name: str) -> float:
    """The first sample of a metric."""
    lines = httpx.get(server.endpoint.metrics_url, timeout=5).text.splitlines()
    return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def settled(server: RunningServer, name: str, seconds: float = 0.3) -> float:
    """The first sample of a metric that is told after the answer that it is about: once it has stayed a while."""
    before = metric(server, name)
    while True:
        time.sleep(seconds)
        if (now := metric(server, name)) == before:
            return now
        before = now
