"""The server under probe: requests to it, its metrics and its configuration."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.verdict import Evidence, Verdict
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.client import Generation, GenerationClient, GenerationRequest, read_body
from llm_pipeline.serving.protocols import metric_values, whole_sum

_CONCURRENCY = 8
_DEFAULT_CONTEXT = 2048
_PROMPT_SHARE = 8
_log = get_logger(__name__)


@dataclass(frozen=True)
class Gauges:
    """The model's own metrics.

    Attributes:
        active: Requests accepted and not ended.
        cancelled: Requests that ended as cancelled so far; None when they are not counted.
        kv_cache_usage: Share of the KV cache in use at the engine's last step; None when the engine does not report it.
    """

    active: int
    cancelled: int | None
    kv_cache_usage: float | None


@dataclass(frozen=True)
class Served:
    """A server under probe.

    Attributes:
        client: Open.
        endpoint: Its addresses.
        golden: Prompts with the outputs that were judged before.
        context: Tokens that one request may have.
    """

    client: GenerationClient
    endpoint: Endpoint
    golden: Sequence[GoldenPrompt]
    context: int

    @property
    def whole_url(self) -> str:
        """URL of requests for whole answers."""
        return self.endpoint.url.rstrip("/") + self.client.protocol.whole_path

    @property
    def any_prompt(self) -> str:
        """A prompt that leaves room for nearly all of the context: one like the golden ones, but short."""
        shortest = min((one.prompt for one in self.golden), key=len, default="1")
        return shortest[: max(1, self.context // _PROMPT_SHARE)].strip() or "1"

    async def ask(self, requests: Sequence[GenerationRequest], *, stream: bool = False) -> list[Generation]:
        """The answers to requests, a few at a time."""
        places = asyncio.Semaphore(_CONCURRENCY)

        async def one(request: GenerationRequest) -> Generation:
            async with places:
                return await (self.client.stream(request) if stream else self.client.generate(request))

        return list(await asyncio.gather(*(one(request) for request in requests)))

    async def ask_golden(self, golden: Sequence[GoldenPrompt], *, stream: bool = False) -> list[Generation]:
        """The answers to golden prompts, decoded greedily."""
        return await self.ask([GenerationRequest(one.prompt, one.maximum_tokens) for one in golden], stream=stream)

    async def generated_tokens(self) -> int | None:
        """Tokens that the model has counted as generated so far; None without that metric."""
        return whole_sum(await self._metric_lines(), self.client.protocol.metrics.output_tokens)

    async def _metric_lines(self) -> list[str]:
        if self.endpoint.metrics_url is None:
            return []
        try:
            async with self.client.session.get(self.endpoint.metrics_url) as answer:
                return (await read_body(answer)).decode(errors="replace").splitlines()
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return []

    async def gauges(self) -> Gauges | None:
        """The model's metrics now; None when they cannot be read or are not there."""
        lines = await self._metric_lines()
        names = self.client.protocol.metrics
        active = whole_sum(lines, *names.active)
        if active is None:
            return None
        cancelled = whole_sum([line for line in lines if names.cancelled in line], names.requests)
        usage = next((found for name in names.kv_cache if (found := metric_values(lines, name))), [])
        return Gauges(active, cancelled, max(usage, default=None))


async def context_length(client: GenerationClient, endpoint: Endpoint) -> int:
    """Tokens that one request may have, as the server says it."""
    try:
        async with client.session.get(f"{endpoint.url.rstrip('/')}{client.protocol.context_path}") as answer:
            return client.protocol.context_length(json.loads(await read_body(answer)))
    except (
        aiohttp.ClientError,
        TimeoutError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        _log.info("the model does not state its context length", assumed=_DEFAULT_CONTEXT, reason=type(error).__name__)
        return _DEFAULT_CONTEXT


def all_right(name: str, total: int, wrong: Sequence[str]) -> Evidence:
    """A fact about `total` attempts, all of which must succeed."""
    if total == 0:
        return Evidence(name=name, verdict=Verdict.INCONCLUSIVE, limit=1.0, unit="fraction", detail="Nothing to try.")
    return Evidence(
        name=name,
        verdict=Verdict.NO_GO if wrong else Verdict.GO,
        measured=1.0 - len(wrong) / total,
        limit=1.0,
        unit="fraction",
        samples=total,
        detail=f"{len(wrong)} of {total} failed, the first: {wrong[0]}" if wrong else "",
    )
