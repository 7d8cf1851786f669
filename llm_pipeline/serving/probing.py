"""The server under probe: requests to it, its metrics, and the probes that take more than one request."""

from __future__ import annotations

import asyncio
import json
import secrets
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import aiohttp

from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.verdict import Evidence, Verdict
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.client import NO_ANSWER, Generation, GenerationClient, GenerationRequest, read_body
from llm_pipeline.serving.metrics_page import Series, metric_values, parse_metrics, whole_sum
from llm_pipeline.serving.protocols import OpenAiProtocol, TritonProtocol

_CONCURRENCY = 8
DEFAULT_CONTEXT = 2048
_PROMPT_SHARE = 8
log = get_logger(__name__)


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
        stated_context: Tokens that one request may have, as the server says it; None where it does not.
    """

    client: GenerationClient
    endpoint: Endpoint
    golden: Sequence[GoldenPrompt]
    stated_context: int | None

    @property
    def context(self) -> int:
        """Tokens that one request may have, as far as is known."""
        return DEFAULT_CONTEXT if self.stated_context is None else self.stated_context

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
        return whole_sum(await self._metrics(), *self.client.protocol.metrics.output_tokens)

    async def _metrics(self) -> dict[Series, float]:
        if self.endpoint.metrics_url is None:
            return {}
        try:
            async with self.client.session.get(self.endpoint.metrics_url) as answer:
                return parse_metrics((await read_body(answer)).decode(errors="replace"))
        except NO_ANSWER:
            return {}

    async def gauges(self) -> Gauges | None:
        """The model's metrics now; None when they cannot be read or are not there."""
        page, names = await self._metrics(), self.client.protocol.metrics
        active = whole_sum(page, *names.active)
        if active is None:
            return None
        cancelled = whole_sum(page, names.requests, label=names.cancelled)
        usage = next((found for name in names.kv_cache if (found := metric_values(page, name))), [])
        return Gauges(active, cancelled, max(usage, default=None))


async def context_length(client: GenerationClient, endpoint: Endpoint) -> int | None:
    """Tokens that one request may have, as the server says it; None where it does not."""
    try:
        async with client.session.get(f"{endpoint.url.rstrip('/')}{client.protocol.context_path}") as answer:
            return client.protocol.context_length(json.loads(await read_body(answer)))
    except (*NO_ANSWER, LookupError, TypeError, AttributeError, RecursionError) as error:
        log.info("the model does not state its context length", assumed=DEFAULT_CONTEXT, reason=type(error).__name__)
        return None


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


_RELEASE_SECONDS = 10.0
_PROMPT_SECONDS = 2.0
_KV_CACHE_SECONDS = 3.0
_ABANDONED_STREAMS = 8
_FEWEST_TOKENS = 64
_KV_CACHE_TOLERANCE = 1.5
"""More usage than so many times that of the short request shows a leak: one leaked request doubles it."""

_SHORT = 4
_PLACE = "a client that goes away frees its place"
_KV_CACHE = "a client that goes away frees its KV cache"


async def departures_free(served: Served) -> list[Evidence]:
    """Start long streams, drop them, and check that the server is as free as before.

    The KV cache's usage is that of the engine's last step, so it is read after the same short request, before and
    after. Without metrics the place is INCONCLUSIVE; an engine without a KV cache metric gets no fact about it.
    """
    before = await served.gauges()
    if before is None:
        detail = "Without metrics_url this cannot be checked."
        if served.endpoint.metrics_url is not None:
            detail = f"The page at {served.endpoint.metrics_url} has none of {_active(served)}."
        return [Evidence(name=_PLACE, verdict=Verdict.INCONCLUSIVE, limit=_RELEASE_SECONDS, unit="s", detail=detail)]
    usage = await _usage_of_a_short_request(served)
    try:
        await _abandon_streams(served)
    except NO_ANSWER as error:
        why = f"HTTP {error.status}" if isinstance(error, aiohttp.ClientResponseError) else type(error).__name__
        detail = f"No stream began ({why})."
        return [Evidence(name=_PLACE, verdict=Verdict.NO_GO, limit=_RELEASE_SECONDS, unit="s", detail=detail)]
    place = await _place_is_free(served, before)
    return [place] if usage is None else [place, await _kv_cache_is_free(served, usage)]


def _active(served: Served) -> str:
    return ", ".join(served.client.protocol.metrics.active)


async def _abandon_streams(served: Served) -> None:
    """Start several long streams and drop them after their first chunk: one alone might end before it is noticed."""
    request = GenerationRequest(served.any_prompt, max(1, served.context * 3 // 4), ignore_eos=True)
    first, request = await _longest_stream(served, request)
    others = await asyncio.gather(*(served.client.open_stream(request) for _ in range(_ABANDONED_STREAMS - 1)))
    for stream in (first, *others):
        await stream.content.readline()
        stream.close()


async def _longest_stream(
    served: Served, request: GenerationRequest
) -> tuple[aiohttp.ClientResponse, GenerationRequest]:
    """A stream of the request, or of half as many tokens and so on while a context that nobody stated was too long."""
    while True:
        try:
            return await served.client.open_stream(request), request
        except aiohttp.ClientResponseError:
            if served.stated_context is not None or request.maximum_tokens < _FEWEST_TOKENS:
                raise
            request = replace(request, maximum_tokens=request.maximum_tokens // 2)


async def _place_is_free(served: Served, before: Gauges) -> Evidence:
    started = time.perf_counter()
    while (now := await served.gauges()) and now.active and time.perf_counter() - started < _RELEASE_SECONDS:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    seconds = time.perf_counter() - started
    fault = ""
    if now is None or now.active:
        active = now.active if now else "an unknown number of"
        fault = f"The server's metrics still count {active} requests after {seconds:.1f} s."
    elif seconds > _PROMPT_SECONDS and now.cancelled is not None and now.cancelled == before.cancelled:
        # requests that are shorter than the server's check may end before it notices that the client left
        fault = "The requests ran to their end although their clients had gone."
    return Evidence(
        name=_PLACE,
        verdict=Verdict.NO_GO if fault else Verdict.GO,
        measured=seconds,
        limit=_RELEASE_SECONDS,
        unit="s",
        samples=_ABANDONED_STREAMS,
        detail=fault,
    )


async def _kv_cache_is_free(served: Served, before: float) -> Evidence:
    """Whether usage is back where it was; measured for a while, as engines free blocks at their next step."""
    deadline, limit = time.perf_counter() + _KV_CACHE_SECONDS, before * _KV_CACHE_TOLERANCE
    while (after := await _usage_of_a_short_request(served)) is not None and after > limit:
        if time.perf_counter() > deadline:
            break
    free = after is not None and after <= limit
    detail = "" if free else f"A short request used {before:.2%} of it before, and {after or 0.0:.2%} is in use now."
    return Evidence(
        name=_KV_CACHE,
        verdict=Verdict.GO if free else Verdict.NO_GO,
        measured=after,
        limit=limit,
        unit="fraction",
        samples=_ABANDONED_STREAMS,
        detail=detail,
    )


async def _usage_of_a_short_request(served: Served) -> float | None:
    """The usage at the last step of a short request; None when the engine does not report it."""
    await served.client.generate(GenerationRequest(served.any_prompt, _SHORT, ignore_eos=True, allow_empty=True))
    last: float | None = None
    for _ in range(10):  # the gauge follows the answer by a moment
        await asyncio.sleep(0.05)
        gauges = await served.gauges()
        usage = gauges.kv_cache_usage if gauges else None
        if usage is None or usage == last:
            return usage
        last = usage
    return last


_REPEATS = "repeated prompts are generated again"
_PROMPTS = 3
_TOKENS = 128
_TRIES = 3
_COUNTED_SHARE = 0.5
"""Of the tokens that were answered; a server may count without the last ones."""

_COUNTED_WITHIN_SECONDS = 10.0
_MANY_PIECES, _FEW_PIECES = 8, 2
_TEMPERATURE = 2.0
_COUNTERS = ", ".join(name for one in (TritonProtocol, OpenAiProtocol) for name in one.metrics.output_tokens)


async def repeats_are_generated(served: Served) -> Evidence:
    """Send new prompts twice; ANOMALOUS if the second answers were not generated but replayed.

    A server that caches answers looks fast to any test that repeats itself.
    Response time is no evidence: on a busy host a generation can look like a replay, and the
    other way round. Load cannot fake the evidence that is judged:

    | evidence | a replay |
    |---|---|
    | tokens that the server counts as generated | answers more tokens than it counts |
    | pieces of a stream, by the tokens that the server says are in each | the whole answer in a piece or two |
    | the same prompt drawn twice at the highest temperature, where the server does not count | gives the same text |

    A prefix cache is no fault: it spares the prompt's part of a repeated request, and every token is still generated.
    Drafts from earlier answers (speculative decoding) are no fault either: a step then gives some tens of tokens
    at most.
    A server that counts what it replays, and replays it in small pieces, goes undetected.
    """
    tokens = max(1, min(_TOKENS, served.context // 4))
    requests = [
        GenerationRequest(f"{secrets.token_hex(4)} {served.any_prompt}", tokens, ignore_eos=True, allow_empty=True)
        for _ in range(_PROMPTS)
    ]
    first = await served.ask(requests, stream=True)
    for _ in range(_TRIES):
        before = await served.generated_tokens()
        again = await served.ask(requests, stream=True)
        if failed := [answer.error for answer in (*first, *again) if not answer.ok]:
            return _fact(Verdict.NO_GO, detail=f"Not answered: {failed[0]}")
        if not _in_one_piece(first, again):
            break
    else:
        return _fact(
            Verdict.ANOMALOUS, detail="Repeated requests were answered in one piece: the server replays answers."
        )
    if before is None:
        return await _drawn_twice(served, requests)
    return await _counted(served, before, sum(answer.output_tokens for answer in again))


def _in_one_piece(first: Sequence[Generation], again: Sequence[Generation]) -> bool:
    """Whether answers that had many pieces came in one or two."""
    pieces, repeated = (statistics.median(len(one.chunk_seconds) for one in answers) for answers in (first, again))
    return pieces >= _MANY_PIECES and repeated <= _FEW_PIECES


async def _counted(served: Served, before: int, received: int) -> Evidence:
    """Whether the server counts the repeated answers as generated; a counter may follow the answers by a while."""
    deadline = time.monotonic() + _COUNTED_WITHIN_SECONDS
    while True:
        counted = (await served.generated_tokens() or before) - before
        share = counted / received if received else 0.0
        if share >= _COUNTED_SHARE or time.monotonic() >= deadline:
            break
        await asyncio.sleep(0.05)
    if share >= _COUNTED_SHARE:
        return _fact(Verdict.GO, share)
    detail = f"{received} tokens came for repeated requests, and the server generated {counted}: a replay."
    return _fact(Verdict.ANOMALOUS, share, detail=detail)


async def _drawn_twice(served: Served, requests: Sequence[GenerationRequest]) -> Evidence:
    """Whether sampled answers differ, for a server that does not count its tokens."""
    drawn = [replace(request, temperature=_TEMPERATURE) for request in requests]
    one, other = await served.ask(drawn), await served.ask(drawn)
    if any(not answer.ok for answer in (*one, *other)):
        detail = f"The server counts no generated tokens ({_COUNTERS}) and does not sample, so this cannot be checked."
        return _fact(Verdict.INCONCLUSIVE, detail=detail)
    different = sum(left.text != right.text for left, right in zip(one, other, strict=True))
    if different:
        return _fact(Verdict.GO, different / len(drawn), unit="of the texts drawn twice differ")
    return _fact(Verdict.ANOMALOUS, detail=f"Texts drawn twice at temperature {_TEMPERATURE:g} are equal: a replay.")


def _fact(
    verdict: Verdict, share: float | None = None, *, unit: str = "of the tokens were counted", detail: str = ""
) -> Evidence:
    return Evidence(
        name=_REPEATS,
        verdict=verdict,
        measured=share,
        unit=unit,
        samples=_PROMPTS,
        detail=detail,
    )
