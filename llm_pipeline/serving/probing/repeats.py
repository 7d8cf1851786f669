"""Whether answers are generated or replayed: a server that caches answers looks fast to any test that repeats itself.

New prompts are sent twice. Response time is no evidence: on a busy host a generation can look like a replay, and the
other way round. Load cannot fake the evidence that is judged:

| evidence | a replay |
|---|---|
| tokens that the server counts as generated | answers more tokens than it counts |
| pieces of a stream, by the tokens that the server says are in each | the whole answer in a piece or two |
| the same prompt drawn twice at the highest temperature, where the server does not count | gives the same text |

A prefix cache is no fault: it spares the prompt's part of a repeated request, and every token is still generated.
Drafts from earlier answers (speculative decoding) are no fault either: a step then gives some tens of tokens, at most.
A server that counts what it replays, and replays it in small pieces, goes undetected.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

from llm_pipeline.base.verdict import Evidence, Verdict
from llm_pipeline.serving.client import Generation, GenerationRequest
from llm_pipeline.serving.probing.served import Served
from llm_pipeline.serving.protocols import OpenAiProtocol, TritonProtocol

_NAME = "repeated prompts are generated again"
_PROMPTS = 3
_TOKENS = 128
_TRIES = 3
_COUNTED_SHARE = 0.5
"""Of the tokens that were answered; a server may count without the last ones."""

_COUNTED_WITHIN_SECONDS = 10.0
_MANY_PIECES, _FEW_PIECES = 8, 2
_TEMPERATURE = 2.0
_COUNTERS = " or ".join(one.metrics.output_tokens for one in (TritonProtocol, OpenAiProtocol))


async def repeats_are_generated(served: Served) -> Evidence:
    """Send new prompts twice; ANOMALOUS if the second answers were not generated."""
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
        name=_NAME,
        verdict=verdict,
        measured=share,
        unit=unit,
        samples=_PROMPTS,
        detail=detail,
    )
