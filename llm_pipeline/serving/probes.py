"""Probes of a staged server: real requests whose answers are checked, because Triton's health says too little.

A dead stub, a wrong engine or a model that ignores `max_tokens` are all "ready". What is probed: greedy outputs
equal the golden ones, streams equal whole answers, lengths are kept, bad requests are refused with a reason, a
client that goes away frees its place, and after all that the server still answers.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp

from llm_pipeline.config.policy import StagingPolicy
from llm_pipeline.logging import get_logger
from llm_pipeline.serving.client import MODEL_PATH, Generation, GenerationClient, GenerationRequest
from llm_pipeline.serving.golden import GoldenPrompt
from llm_pipeline.verdict import Evidence, Judgement, Verdict, judge

_CONCURRENCY = 8
_STREAMED_PROMPTS = 8
_EXACT_TOKENS = 5
_ABSURD_TOKENS = 2_000_000_000
_DEFAULT_CONTEXT = 2048
_CHARACTERS_A_TOKEN = 16
_RELEASE_SECONDS = 10.0
_PROMPT_SECONDS = 2.0
_ABANDONED_STREAMS = 8
_ACTIVE_REQUESTS = "llm_active_requests"
_REQUESTS_TOTAL = "llm_requests_total"
_log = get_logger(__name__)


@dataclass(frozen=True)
class _Server:
    client: GenerationClient
    base_url: str
    metrics_url: str | None
    golden: Sequence[GoldenPrompt]
    context: int


async def probe(
    base_url: str,
    golden: Sequence[GoldenPrompt],
    policy: StagingPolicy,
    *,
    metrics_url: str | None = None,
    timeout_seconds: float = 30.0,
) -> Judgement:
    """Probe the server at `base_url`.

    Args:
        base_url: Its HTTP endpoint.
        golden: Prompts with the outputs that were judged before.
        policy: How many must match.
        metrics_url: Its Prometheus metrics; without it, cancellation is INCONCLUSIVE.
        timeout_seconds: Longest time for one answer.
    """
    async with GenerationClient(base_url, timeout_seconds=timeout_seconds) as client:
        server = _Server(client, base_url.rstrip("/"), metrics_url, golden, await _context_length(client, base_url))
        first = await _first_generation(server, policy.ready_timeout_seconds)
        if first.verdict is not Verdict.GO:
            return judge(f"The server does not generate: {first.detail}", [first])
        facts = [
            await _golden_outputs(server, policy),
            await _streams_equal(server),
            await _length_is_kept(server),
            await _bad_requests_are_refused(server),
            await _disconnect_frees_the_place(server),
            await _still_answers(server),
        ]
    judgement = judge("", [first, *facts])
    failed = [fact for fact in judgement.evidence if fact.verdict is not Verdict.GO]
    summary = "; ".join(f"{fact.name}: {fact.detail}" for fact in failed) or f"All {len(facts) + 1} probes passed."
    return judgement.model_copy(update={"summary": summary})


async def _first_generation(server: _Server, timeout_seconds: float) -> Evidence:
    started = time.perf_counter()
    prompt = server.golden[0].prompt if server.golden else "1"
    while True:
        answer = await server.client.generate(GenerationRequest(prompt, 1, ignore_eos=True, allow_empty=True))
        seconds = time.perf_counter() - started
        if answer.ok or seconds > timeout_seconds:
            break
        await asyncio.sleep(0.2)
    return Evidence(
        name="first real generation",
        verdict=Verdict.GO if answer.ok else Verdict.NO_GO,
        measured=seconds,
        limit=timeout_seconds,
        unit="s",
        samples=1,
        detail=answer.error,
    )


async def _golden_outputs(server: _Server, policy: StagingPolicy) -> Evidence:
    name, limit = "golden outputs reproduced", policy.golden_match_fraction
    answers = await _ask_golden(server, server.golden)
    pairs = list(zip(server.golden, answers, strict=True))
    different = [(prompt, answer) for prompt, answer in pairs if not _same(prompt.completion, answer)]
    if not pairs:
        return Evidence(name=name, verdict=Verdict.INCONCLUSIVE, limit=limit, detail="There are no golden prompts.")
    share = 1.0 - len(different) / len(pairs)
    few = len(pairs) < policy.minimum_golden_prompts
    verdict = Verdict.NO_GO if share < limit else Verdict.INCONCLUSIVE if few else Verdict.GO
    detail = f"{len(pairs)} prompts, {policy.minimum_golden_prompts} are needed. " if few else ""
    if different:
        prompt, answer = different[0]
        detail += (
            f"{len(different)} differ, the first: {prompt.prompt!r} gave {answer.error or answer.text!r} "
            f"instead of {prompt.completion!r}."
        )
    return Evidence(
        name=name, verdict=verdict, measured=share, limit=limit, unit="fraction", samples=len(pairs), detail=detail
    )


def _same(completion: str, answer: Generation) -> bool:
    """Equal but for white space at the ends, which detokenizers treat differently."""
    return answer.ok and answer.text.strip() == completion.strip()


async def _ask_golden(server: _Server, golden: Sequence[GoldenPrompt], *, stream: bool = False) -> list[Generation]:
    places = asyncio.Semaphore(_CONCURRENCY)

    async def ask(prompt: GoldenPrompt) -> Generation:
        request = GenerationRequest(prompt.prompt, prompt.maximum_tokens)
        async with places:
            return await (server.client.stream(request) if stream else server.client.generate(request))

    return list(await asyncio.gather(*(ask(prompt) for prompt in golden)))


async def _streams_equal(server: _Server) -> Evidence:
    prompts = server.golden[:_STREAMED_PROMPTS]
    whole = await _ask_golden(server, prompts)
    streamed = await _ask_golden(server, prompts, stream=True)
    wrong = [
        answer.error or f"streamed {answer.text!r}, whole {other.text!r}"
        for answer, other in zip(streamed, whole, strict=True)
        if not answer.ok or (answer.text, answer.output_tokens) != (other.text, other.output_tokens)
    ]
    return _share("streams equal whole answers", len(prompts), wrong)


async def _length_is_kept(server: _Server) -> Evidence:
    prompts = server.golden[:_STREAMED_PROMPTS]
    requests = [
        GenerationRequest(prompt.prompt, _EXACT_TOKENS, ignore_eos=True, allow_empty=True) for prompt in prompts
    ]
    answers = [await server.client.stream(request) for request in requests]
    return _share("generation stops at max_tokens", len(prompts), [a.error for a in answers if not a.ok])


async def _bad_requests_are_refused(server: _Server) -> Evidence:
    prompt = "1 " * (server.context * _CHARACTERS_A_TOKEN // 2)
    bodies: dict[str, bytes] = {
        "not JSON": b"{",
        "no prompt": json.dumps({"max_tokens": 4}).encode(),
        "an empty prompt": json.dumps({"text_input": "", "max_tokens": 4}).encode(),
        "max_tokens of the wrong type": json.dumps({"text_input": "1", "max_tokens": "many"}).encode(),
        "max_tokens far too large": json.dumps({"text_input": "1", "max_tokens": _ABSURD_TOKENS}).encode(),
        "a prompt far too long": json.dumps({"text_input": prompt, "max_tokens": 4}).encode(),
    }
    wrong = [f"{what}: {fault}" for what, body in bodies.items() if (fault := await _refusal_fault(server, body))]
    return _share("bad requests are refused with a reason", len(bodies), wrong)


async def _refusal_fault(server: _Server, body: bytes) -> str:
    """What is wrong with the refusal of a bad request; empty when it is a clear one."""
    url = f"{server.base_url}{MODEL_PATH}/generate"
    try:
        async with server.client.session.post(url, data=body) as answer:
            text = await answer.text()
    except (aiohttp.ClientError, TimeoutError) as error:
        return f"no answer at all ({type(error).__name__})"
    if answer.status < HTTPStatus.BAD_REQUEST:
        return f"HTTP {answer.status}"  # Triton itself answers 500 to a body that is not JSON
    try:
        reason = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status} without a reason"
    return "" if reason else f"HTTP {answer.status} with an empty reason"


async def _disconnect_frees_the_place(server: _Server) -> Evidence:
    name, limit = "a client that goes away frees its place", _RELEASE_SECONDS
    before = await _gauges(server)
    if before is None:
        detail = f"The metric {_ACTIVE_REQUESTS} is not there, so nobody can tell."
        return Evidence(name=name, verdict=Verdict.INCONCLUSIVE, limit=limit, unit="s", detail=detail)
    await _abandon_streams(server)
    started = time.perf_counter()
    while (now := await _gauges(server)) and now.active and time.perf_counter() - started < limit:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    seconds = time.perf_counter() - started
    fault = ""
    if now is None or now.active:
        fault = f"{_ACTIVE_REQUESTS} is still {now.active if now else 'unknown'} after {seconds:.1f} s."
    elif seconds > _PROMPT_SECONDS and now.cancelled is not None and now.cancelled == before.cancelled:
        fault = "The requests ran to their end although nobody listened."  # shorter ones may end before anybody notices
    return Evidence(
        name=name,
        verdict=Verdict.NO_GO if fault else Verdict.GO,
        measured=seconds,
        limit=limit,
        unit="s",
        samples=_ABANDONED_STREAMS,
        detail=fault,
    )


async def _abandon_streams(server: _Server) -> None:
    """Start several long streams and drop them after their first chunk: one alone might end before it is noticed."""
    prompt = server.golden[0].prompt if server.golden else "1"
    request = GenerationRequest(prompt, max(1, server.context * 3 // 4), ignore_eos=True)
    streams = await asyncio.gather(*(server.client.open_stream(request) for _ in range(_ABANDONED_STREAMS)))
    for stream in streams:
        await stream.content.readline()
        stream.close()


async def _still_answers(server: _Server) -> Evidence:
    answers = await _ask_golden(server, server.golden[:1])
    return _share("the server still answers afterwards", len(answers), [a.error for a in answers if not a.ok])


@dataclass(frozen=True)
class _Gauges:
    """The model's own metrics: live requests, and cancelled ones so far (None when it does not count them)."""

    active: int
    cancelled: int | None


async def _gauges(server: _Server) -> _Gauges | None:
    if server.metrics_url is None:
        return None
    try:
        async with server.client.session.get(server.metrics_url) as answer:
            lines = (await answer.text()).splitlines()
    except (aiohttp.ClientError, TimeoutError):
        return None
    active = _sum([line for line in lines if line.startswith(_ACTIVE_REQUESTS)])
    cancelled = _sum([line for line in lines if line.startswith(_REQUESTS_TOTAL) and '"cancelled"' in line])
    return None if active is None else _Gauges(active, cancelled)


def _sum(lines: Sequence[str]) -> int | None:
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines)) if lines else None


async def _context_length(client: GenerationClient, base_url: str) -> int:
    """Tokens that one request may have, as the model's configuration says it."""
    try:
        async with client.session.get(f"{base_url.rstrip('/')}{MODEL_PATH}/config") as answer:
            parameters: dict[str, Any] = json.loads(await answer.text()).get("parameters", {})
            return int(parameters["maximum_tokens_per_request"]["string_value"])
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
        _log.info("the model does not tell its context length", assumed=_DEFAULT_CONTEXT, reason=type(error).__name__)
        return _DEFAULT_CONTEXT


def _share(name: str, total: int, wrong: Sequence[str]) -> Evidence:
    """All of `total` must be right."""
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
