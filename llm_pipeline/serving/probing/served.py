"""The server that is probed: how it is asked, what its metrics and its configuration tell."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.verdict import Evidence, Verdict
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.client import MODEL_PATH, Generation, GenerationClient, GenerationRequest, read_body
from llm_pipeline.serving.endpoint_access import ACTIVE_REQUESTS, metric_values

_REQUESTS_TOTAL = "llm_requests_total"
_TOKENS_TOTAL = "llm_tokens_total"
_KV_CACHE_USAGE = "llm_kv_cache_usage"
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
        kv_cache_usage: Share of the KV cache in use at the engine's last step; None when the engine does not tell.
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
    def model_url(self) -> str:
        """URL of the model `llm`."""
        return self.endpoint.url.rstrip("/") + MODEL_PATH

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
        """The answers to golden prompts."""
        return await self.ask([GenerationRequest(one.prompt, one.maximum_tokens) for one in golden], stream=stream)

    async def generated_tokens(self) -> int | None:
        """Tokens that the model says it has generated so far; None when it does not tell."""
        values = metric_values(await self._metric_lines(), _TOKENS_TOTAL)
        return int(sum(values)) if values else None

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
        active = metric_values(lines, ACTIVE_REQUESTS)
        cancelled = metric_values([line for line in lines if '"cancelled"' in line], _REQUESTS_TOTAL)
        usage = metric_values(lines, _KV_CACHE_USAGE)
        if not active:
            return None
        return Gauges(int(sum(active)), int(sum(cancelled)) if cancelled else None, max(usage, default=None))


async def context_length(client: GenerationClient, endpoint: Endpoint) -> int:
    """Tokens that one request may have, as the model's configuration says it."""
    try:
        async with client.session.get(f"{endpoint.url.rstrip('/')}{MODEL_PATH}/config") as answer:
            parameters: dict[str, Any] = json.loads(await read_body(answer)).get("parameters", {})
            return int(parameters["maximum_tokens_per_request"]["string_value"])
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
    """A fact about `total` tries, all of which must be right."""
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
