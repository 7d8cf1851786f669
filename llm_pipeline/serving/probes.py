"""Probes of a staged server: real requests whose answers are checked, because Triton's health says too little.

A dead stub, a wrong engine or a model that ignores `max_tokens` are all "ready". What is probed: this version answers,
greedy outputs equal the golden ones, streams equal whole answers, answers end at `max_tokens` and at stop words, bad
requests are refused with a reason, a client that goes away frees what it held, answers are generated and not replayed,
and at the end the server still answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.policy import StagingPolicy
from llm_pipeline.serving.client import GenerationClient, GenerationRequest
from llm_pipeline.serving.probing.answers import (
    bad_requests_are_refused,
    golden_outputs,
    length_is_kept,
    still_answers,
    stop_words_end,
    streams_equal,
)
from llm_pipeline.serving.probing.departures import departures_free
from llm_pipeline.serving.probing.repeats import repeats_are_generated
from llm_pipeline.serving.probing.served import Served, context_length


async def probe(
    endpoint: Endpoint,
    golden: Sequence[GoldenPrompt],
    policy: StagingPolicy,
    *,
    version: int | None = None,
    timeout_seconds: float = 30.0,
) -> Judgement:
    """Probe the server at `endpoint`.

    Args:
        endpoint: Its addresses; without metrics, cancellation is INCONCLUSIVE.
        golden: Prompts with the outputs that were judged before.
        policy: How many must match.
        version: The model version that must answer; None for any, as long as it is one.
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
            *await golden_outputs(served, policy, version),
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
