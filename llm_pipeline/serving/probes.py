"""Probes of a staged server: real requests whose answers are checked, because Triton's health says too little.

A dead stub, a wrong engine or a model that ignores `max_tokens` are all "ready". What is probed: it answers,
greedy outputs equal the golden ones, streams equal whole answers, answers end at `max_tokens` and at stop words, bad
requests are refused with a reason, a client that goes away frees what it held, answers are generated and not replayed,
and at the end the server still answers.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from http import HTTPStatus

from llm_pipeline.artifacts.golden import HALF_A_CHARACTER, GoldenPrompt
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.policy import StagingPolicy
from llm_pipeline.serving.client import NO_ANSWER, Generation, GenerationClient, GenerationRequest, read_body
from llm_pipeline.serving.probing import (
    DEFAULT_CONTEXT,
    Served,
    all_right,
    context_length,
    departures_free,
    repeats_are_generated,
)
from llm_pipeline.serving.protocols import reason_in


async def probe(
    endpoint: Endpoint,
    golden: Sequence[GoldenPrompt],
    policy: StagingPolicy,
    *,
    timeout_seconds: float = 30.0,
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
        served = Served(client, endpoint, golden, await context_length(client, endpoint))
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
            *await departures_free(served),
            await still_answers(served),
        ]
    judgement = judge("", [first, *facts])
    failed = [fact for fact in judgement.evidence if fact.verdict is not Verdict.GO]
    summary = "; ".join(f"{fact.name}: {fact.detail}" for fact in failed) or f"All {len(facts) + 1} probes passed."
    return judgement.model_copy(update={"summary": summary})


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
    wanted, got = _compared(prompt, answer)
    return _first_difference(wanted, got) / max(len(wanted), len(got), 1) if wanted != got else 1.0


def _compared(prompt: GoldenPrompt, answer: Generation) -> tuple[str, str]:
    return prompt.compared(answer.text, was_cut=answer.finish_reason == "length")


def _difference(prompt: GoldenPrompt, answer: Generation) -> str:
    """How an answer differs, from just before the place where it does."""
    if not answer.ok:
        return f"{_cut(prompt.prompt)!r} gave {answer.error!r}"
    wanted, got = _compared(prompt, answer)
    place = _first_difference(wanted, got)
    where = f" from character {place} on" if place else ""
    return f"{_cut(prompt.prompt)!r} gave {_cut(got[place:])!r} instead of {_cut(wanted[place:])!r}{where}"


def _first_difference(one: str, other: str) -> int:
    """How many characters are equal from the start."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


async def streams_equal(served: Served) -> Evidence:
    """Whether a stream, joined, equals the whole answer."""
    prompts = served.golden[:_FEW_PROMPTS]
    whole, streamed = await served.ask_golden(prompts), await served.ask_golden(prompts, stream=True)
    wrong = [
        answer.error or f"streamed {_cut(answer.text)!r}, whole {_cut(other.text)!r}"
        for answer, other in zip(streamed, whole, strict=True)
        if not answer.ok or _whole_characters(answer) != _whole_characters(other)
    ]
    return all_right("streams equal whole answers", len(prompts), wrong)


def _whole_characters(answer: Generation) -> tuple[str, int]:
    """An answer's text and tokens: of a character that `max_tokens` cuts, llama.cpp's streams show nothing."""
    return answer.text.rstrip(HALF_A_CHARACTER), answer.output_tokens


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
    bodies = served.client.protocol.bad_bodies(None if limit is None else "1 " * (limit * _CHARACTERS_A_TOKEN // 2))
    wrong = [f"{what}: {fault}" for what, body in bodies.items() if (fault := await _refusal_fault(served, body))]
    fact = all_right("bad requests are refused with a reason", len(bodies), wrong)
    return fact if wrong or limit is not None else fact.model_copy(update={"detail": _NO_LIMIT})


_NO_LIMIT = f"No over-long request was sent: the server states no context, and {DEFAULT_CONTEXT} tokens were assumed."


async def _refusal_fault(served: Served, body: bytes) -> str:
    """What is wrong with the refusal of a bad request; empty when it is a clear one."""
    try:
        async with served.client.session.post(served.whole_url, data=body, headers=_JSON) as answer:
            text = await read_body(answer)
    except NO_ANSWER as error:
        return f"no answer at all ({type(error).__name__})"
    if answer.status < HTTPStatus.BAD_REQUEST:
        return f"HTTP {answer.status}"  # Triton itself answers 500 to a body that is not JSON
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return f"HTTP {answer.status} without a reason"
    return "" if reason_in(document) else f"HTTP {answer.status} without a reason"
