"""Whether a client that leaves frees its place in the batch and its part of the KV cache."""

from __future__ import annotations

import asyncio
import time

import aiohttp

from llm_pipeline.base.verdict import Evidence, Verdict
from llm_pipeline.serving.client import GenerationRequest
from llm_pipeline.serving.probing.served import Gauges, Served

_RELEASE_SECONDS = 10.0
_PROMPT_SECONDS = 2.0
_KV_CACHE_SECONDS = 3.0
_ABANDONED_STREAMS = 8
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
        detail = f"The server has no metric {_active(served)}, so this cannot be checked."
        return [Evidence(name=_PLACE, verdict=Verdict.INCONCLUSIVE, limit=_RELEASE_SECONDS, unit="s", detail=detail)]
    usage = await _usage_of_a_short_request(served)
    try:
        await _abandon_streams(served)
    except (aiohttp.ClientError, TimeoutError) as error:
        detail = f"No stream began ({type(error).__name__})."
        return [Evidence(name=_PLACE, verdict=Verdict.NO_GO, limit=_RELEASE_SECONDS, unit="s", detail=detail)]
    place = await _place_is_free(served, before)
    return [place] if usage is None else [place, await _kv_cache_is_free(served, usage)]


def _active(served: Served) -> str:
    return " and ".join(served.client.protocol.metrics.active)


async def _abandon_streams(served: Served) -> None:
    """Start several long streams and drop them after their first chunk: one alone might end before it is noticed."""
    request = GenerationRequest(served.any_prompt, max(1, served.context * 3 // 4), ignore_eos=True)
    streams = await asyncio.gather(*(served.client.open_stream(request) for _ in range(_ABANDONED_STREAMS)))
    for stream in streams:
        await stream.content.readline()
        stream.close()


async def _place_is_free(served: Served, before: Gauges) -> Evidence:
    started = time.perf_counter()
    while (now := await served.gauges()) and now.active and time.perf_counter() - started < _RELEASE_SECONDS:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    seconds = time.perf_counter() - started
    fault = ""
    if now is None or now.active:
        fault = f"{_active(served)} is still {now.active if now else 'unknown'} after {seconds:.1f} s."
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
