"""Probes of a staged server: real requests whose answers are checked, because its health says too little.

A dead stub, a wrong engine or a model that ignores `max_tokens` are all "ready". What is probed: it answers,
greedy outputs equal the golden ones, streams equal whole answers, answers end at `max_tokens` and at stop words, bad
requests are refused with a reason, a client that goes away frees what it held, answers are generated and not replayed,
and at the end the server still answers.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

import aiohttp

from llm_pipeline.artifacts.golden import HALF_A_CHARACTER, GoldenPrompt
from llm_pipeline.base.errors import IntegrityError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.policy import StagingPolicy
from llm_pipeline.serving.client import NO_ANSWER, Generation, GenerationClient, GenerationRequest, read_body
from llm_pipeline.serving.completions import Metrics, bad_bodies, reason_in
from llm_pipeline.serving.endpoint_access import require_model
from llm_pipeline.serving.metrics_page import Series, parse_metrics, whole_sum

_CONCURRENCY = 8
DEFAULT_CONTEXT = 2048
_PROMPT_SHARE = 8
log = get_logger(__name__)


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

    async def metrics(self) -> dict[Series, float]:
        """The server's metrics now; none when they cannot be read."""
        if self.endpoint.metrics_url is None:
            return {}
        try:
            async with self.client.session.get(self.endpoint.metrics_url) as answer:
                return parse_metrics((await read_body(answer)).decode(errors="replace"))
        except NO_ANSWER:
            return {}

    async def generated_tokens(self) -> int | None:
        """Tokens that the model has counted as generated so far; None without that metric."""
        return whole_sum(await self.metrics(), *Metrics.output_tokens)


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
_ABANDONED_STREAMS = 8
_FEWEST_TOKENS = 64
_PLACE = "a client that goes away frees its place"


async def departures_free(served: Served) -> Evidence:
    """Start long streams, drop them, and check that the server is as free as before; without metrics INCONCLUSIVE."""

    def fact(verdict: Verdict, detail: str = "", **measured: Any) -> Evidence:
        return Evidence(name=_PLACE, verdict=verdict, limit=_RELEASE_SECONDS, unit="s", detail=detail, **measured)

    def cancelled(page: dict[Series, float]) -> int | None:
        """Requests that ended as cancelled so far; None when they are not counted."""
        counters = (whole_sum(page, name, label=label) for name, label in Metrics.cancelled)
        return next((count for count in counters if count is not None), None)

    before = await served.metrics()
    if whole_sum(before, *Metrics.active) is None:
        detail = "Without metrics_url this cannot be checked."
        if served.endpoint.metrics_url is not None:
            detail = f"The page at {served.endpoint.metrics_url} has none of {', '.join(Metrics.active)}."
        return fact(Verdict.INCONCLUSIVE, detail)
    request = GenerationRequest(served.any_prompt, max(1, served.context * 3 // 4), ignore_eos=True)
    try:
        while True:  # half as many tokens and so on, while a context that nobody stated was too long
            try:
                first = await served.client.open_stream(request)
                break
            except aiohttp.ClientResponseError:
                if served.stated_context is not None or request.maximum_tokens < _FEWEST_TOKENS:
                    raise
                request = replace(request, maximum_tokens=request.maximum_tokens // 2)
        # Several streams, dropped after their first chunk: one alone might end before it is noticed.
        others = await asyncio.gather(*(served.client.open_stream(request) for _ in range(_ABANDONED_STREAMS - 1)))
        for stream in (first, *others):
            await stream.content.readline()
            stream.close()
    except NO_ANSWER as error:
        why = f"HTTP {error.status}" if isinstance(error, aiohttp.ClientResponseError) else type(error).__name__
        return fact(Verdict.NO_GO, f"No stream began ({why}).")
    started = time.perf_counter()
    while True:
        page = await served.metrics()
        active, seconds = whole_sum(page, *Metrics.active), time.perf_counter() - started
        if not active or seconds >= _RELEASE_SECONDS:
            break
        await asyncio.sleep(0.05)
    fault = ""
    if active != 0:
        counted = "an unknown number of" if active is None else active
        fault = f"The server's metrics still count {counted} requests after {seconds:.1f} s."
    elif seconds > _PROMPT_SECONDS and cancelled(page) is not None and cancelled(page) == cancelled(before):
        # requests that are shorter than the server's check may end before it notices that the client left
        fault = "The requests ran to their end although their clients had gone."
    return fact(Verdict.NO_GO if fault else Verdict.GO, fault, measured=seconds, samples=_ABANDONED_STREAMS)


_REPEATS = "repeated prompts are generated again"
_PROMPTS = 3
_TOKENS = 128
_TRIES = 3
_COUNTED_SHARE = 0.5
"""Of the tokens that were answered; a server may count without the last ones."""

_COUNTED_WITHIN_SECONDS = 10.0
_MANY_PIECES, _FEW_PIECES = 8, 2
_TEMPERATURE = 2.0


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
        if failed := [answer for answer in (*first, *again) if not answer.ok]:
            wrong = next((answer for answer in failed if not answer.late), None)
            verdict = Verdict.NO_GO if wrong else Verdict.INCONCLUSIVE  # a busy host takes its time
            return _fact(verdict, detail=f"Not answered: {(wrong or failed[0]).error}")
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
        counters = ", ".join(Metrics.output_tokens)
        detail = f"The server counts no generated tokens ({counters}) and does not sample, so this cannot be checked."
        return _fact(Verdict.INCONCLUSIVE, detail=detail)
    different = sum(left.text != right.text for left, right in zip(one, other, strict=True))
    if different:
        return _fact(Verdict.GO, different / len(drawn), detail="Share of the texts drawn twice that differ.")
    return _fact(Verdict.ANOMALOUS, detail=f"Texts drawn twice at temperature {_TEMPERATURE:g} are equal: a replay.")


def _fact(verdict: Verdict, share: float | None = None, *, detail: str = "") -> Evidence:
    return Evidence(name=_REPEATS, verdict=verdict, measured=share, unit="fraction", samples=_PROMPTS, detail=detail)


async def probe(
    endpoint: Endpoint, golden: Sequence[GoldenPrompt], policy: StagingPolicy, *, timeout_seconds: float = 30.0
) -> Judgement:
    """Probe the server at `endpoint`.

    Args:
        endpoint: Its addresses; without metrics, cancellation is INCONCLUSIVE.
        golden: Prompts with the outputs that were judged before.
        policy: How many must match.
        timeout_seconds: Longest time for one answer.

    Raises:
        ConfigError: A header's variable is not set, or the certificates cannot be read.
    """
    async with GenerationClient.of(endpoint, timeout_seconds=timeout_seconds) as client:
        served = Served(client, endpoint, golden, await asyncio.to_thread(_stated_context, endpoint))
        first = await _first_generation(served, policy.ready_timeout_seconds)
        if first.verdict is not Verdict.GO:
            return judge(f"The server does not generate: {first.detail}", [first])
        facts = [
            await golden_outputs(served, policy),
            await streams_equal(served),
            await length_is_kept(served),
            await stop_words_end(served),
            await bad_requests_are_refused(served),
            await repeats_are_generated(served),
            await departures_free(served),
            await still_answers(served),
        ]
    judgement = judge("", [first, *facts])
    failed = [fact for fact in judgement.evidence if fact.verdict is not Verdict.GO]
    summary = "; ".join(f"{fact.name}: {fact.detail}" for fact in failed) or f"All {len(facts) + 1} probes passed."
    return judgement.model_copy(update={"summary": summary})


def _stated_context(endpoint: Endpoint) -> int | None:
    try:
        length = require_model(endpoint)
    except (Transient, IntegrityError) as error:
        log.info("the server does not tell of its model", reason=error.message)
        return None
    if length is None:
        log.info("the model does not state its context length", assumed=DEFAULT_CONTEXT)
    return length


async def _first_generation(served: Served, timeout_seconds: float) -> Evidence:
    started = time.perf_counter()
    while True:
        request = GenerationRequest(served.any_prompt, 1, ignore_eos=True, allow_empty=True)
        answer = await served.client.generate(request)
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


GOLDEN_OUTPUTS = "golden outputs reproduced"
_FEW_PROMPTS = 8
_EXACT_TOKENS = 5
_SHOWN_CHARACTERS = 40
_JSON = {"Content-Type": "application/json"}
_CHARACTERS_A_TOKEN = 16


async def golden_outputs(served: Served, policy: StagingPolicy) -> Evidence:
    """Whether greedy outputs equal those that the gate judged."""
    golden, limit = served.golden, policy.golden_match_fraction
    if not golden:
        return Evidence(
            name=GOLDEN_OUTPUTS, verdict=Verdict.INCONCLUSIVE, limit=limit, detail="There are no golden prompts."
        )
    pairs = list(zip(golden, await served.ask_golden(golden), strict=True))
    different = [(prompt, answer) for prompt, answer in pairs if _common(prompt, answer) < 1.0]
    share, few = 1.0 - len(different) / len(pairs), len(pairs) < policy.minimum_golden_prompts
    detail = f"{len(pairs)} prompts, {policy.minimum_golden_prompts} are needed. " if few else ""
    if different:
        common = sum(_common(prompt, answer) for prompt, answer in pairs) / len(pairs)
        detail += f"{len(different)} differ, with {100 * common:.1f} % of all text equal up to the first difference; "
        detail += f"the first: {_difference(*different[0])}."
    return Evidence(
        name=GOLDEN_OUTPUTS,
        verdict=Verdict.NO_GO if share < limit else Verdict.INCONCLUSIVE if few else Verdict.GO,
        measured=share,
        limit=limit,
        unit="fraction",
        samples=len(pairs),
        detail=detail,
    )


def _common(prompt: GoldenPrompt, answer: Generation) -> float:
    """Share of the longer text that is equal from its start; 0 without an answer."""
    if not answer.ok:
        return 0.0
    wanted, got = prompt.compared(answer.text, was_cut=answer.finish_reason == "length")
    return _alike(wanted, got) / max(len(wanted), len(got), 1) if wanted != got else 1.0


def _difference(prompt: GoldenPrompt, answer: Generation) -> str:
    """How an answer differs, from just before the place where it does."""
    if not answer.ok:
        return f"{_cut(prompt.prompt)!r} gave {answer.error!r}"
    wanted, got = prompt.compared(answer.text, was_cut=answer.finish_reason == "length")
    place = _alike(wanted, got)
    where = f" from character {place} on" if place else ""
    return f"{_cut(prompt.prompt)!r} gave {_cut(got[place:])!r} instead of {_cut(wanted[place:])!r}{where}"


def _alike(one: str, other: str) -> int:
    """How many characters are equal from the start."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


async def streams_equal(served: Served) -> Evidence:
    """Whether a stream, joined, equals the whole answer."""

    def told(answer: Generation) -> tuple[str, int]:
        """Text and tokens: of a character that `max_tokens` cuts, llama.cpp's streams show nothing."""
        return answer.text.rstrip(HALF_A_CHARACTER), answer.output_tokens

    prompts = served.golden[:_FEW_PROMPTS]
    whole, streamed = await served.ask_golden(prompts), await served.ask_golden(prompts, stream=True)
    wrong = [
        answer.error or f"streamed {_cut(answer.text)!r}, whole {_cut(other.text)!r}"
        for answer, other in zip(streamed, whole, strict=True)
        if not answer.ok or told(answer) != told(other)
    ]
    return all_right("streams equal whole answers", len(prompts), wrong)


async def length_is_kept(served: Served) -> Evidence:
    """Whether exactly `max_tokens` tokens come with `ignore_eos`."""
    prompts = served.golden[:_FEW_PROMPTS]
    requests = [
        GenerationRequest(prompt.prompt, _EXACT_TOKENS, ignore_eos=True, allow_empty=True) for prompt in prompts
    ]
    answers = [await served.client.stream(request) for request in requests]
    return all_right("generation stops at max_tokens", len(prompts), [a.error for a in answers if not a.ok])


async def stop_words_end(served: Served) -> Evidence:
    """Whether an answer ends before a stop word, taken from the middle of the same prompt's earlier answer."""
    prompts = served.golden[:_FEW_PROMPTS]
    whole = await served.ask_golden(prompts)
    asked = [
        (prompt, answer.text, words[len(words) // 2])
        for prompt, answer in zip(prompts, whole, strict=True)
        if (words := [word for word in answer.text.split() if HALF_A_CHARACTER not in word])
    ]
    requests = [
        GenerationRequest(prompt.prompt, prompt.maximum_tokens, stop=(word,), allow_empty=True)
        for prompt, _, word in asked
    ]
    wrong: list[str] = []
    for stream in (False, True):
        answers = await served.ask(requests, stream=stream)
        wrong += [
            fault for case, answer in zip(asked, answers, strict=True) if (fault := _stop_fault(*case[1:], answer))
        ]
    return all_right("generation stops at stop words", 2 * len(asked), wrong)


def _stop_fault(text: str, word: str, answer: Generation) -> str:
    wanted = text[: text.index(word)].strip()
    if answer.ok and answer.finish_reason == "stop" and answer.text.strip() == wanted:
        return ""
    return answer.error or (
        f"stop word {word!r} gave {_cut(answer.text)!r} ({answer.finish_reason}) instead of {_cut(wanted)!r} (stop)"
    )


async def still_answers(served: Served) -> Evidence:
    """Whether the server still answers after all other probes."""
    answers = await served.ask_golden(served.golden[:1])
    return all_right("the server still answers afterwards", len(answers), [a.error for a in answers if not a.ok])


async def bad_requests_are_refused(served: Served) -> Evidence:
    """Whether malformed and over-long requests are refused, each with an error text."""
    limit = served.stated_context
    bodies = bad_bodies(served.client.model, None if limit is None else "1 " * (limit * _CHARACTERS_A_TOKEN // 2))
    wrong = [f"{what}: {fault}" for what, body in bodies.items() if (fault := await _refusal_fault(served, body))]
    fact = all_right("bad requests are refused with a reason", len(bodies), wrong)
    return fact if wrong or limit is not None else fact.model_copy(update={"detail": _NO_LIMIT})


_NO_LIMIT = f"No over-long request was sent: the server states no context, and {DEFAULT_CONTEXT} tokens were assumed."


async def _refusal_fault(served: Served, body: bytes) -> str:
    """What is wrong with the refusal of a bad request; empty when it is a clear one."""
    try:
        async with served.client.session.post(served.client.url, data=body, headers=_JSON) as answer:
            text = await read_body(answer)
    except NO_ANSWER as error:
        return f"no answer at all ({type(error).__name__})"
    if answer.status < HTTPStatus.BAD_REQUEST:
        return f"HTTP {answer.status}"
    with suppress(ValueError, RecursionError):
        if reason_in(json.loads(text)):
            return ""
    return f"HTTP {answer.status} without a reason"
