"""Whether answers are generated or replayed: a server that caches answers looks fast to any test that repeats itself.

A prefix cache is no fault: it spares the prompt's part of a repeated request, and every token is still generated. So
only the time from the first to the last piece of an answer is compared, of prompts that nobody asked before with the
same prompts once more. Drafts from earlier answers (speculative decoding) are no fault either: a step then gives some
tens of tokens, at most. More than that is not generated. A server that replays as slowly as it generates is not seen.
"""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Sequence

from llm_pipeline.serving.client import Generation, GenerationRequest
from llm_pipeline.serving.probing.served import Served
from llm_pipeline.verdict import Evidence, Verdict

_NAME = "repeated prompts are answered anew"
_PROMPTS = 3
_TOKENS = 128
_TRIES = 3
_LIMIT = 1 / 64
"""The whole answer in about the time of two tokens."""

_MEASURABLE_SECONDS = 0.04
_STREAMED = 0.5


async def repeats_are_generated(served: Served) -> Evidence:
    """Ask new prompts twice; ANOMALOUS when the second answers come in no time, and so do those of every further try.

    A client that was held up reads all pieces of an answer at once: that looks like a replay, but seldom three times.
    """
    tokens = max(1, min(_TOKENS, served.context // 4))
    requests = [
        GenerationRequest(f"{secrets.token_hex(4)} {served.any_prompt}", tokens, ignore_eos=True, allow_empty=True)
        for _ in range(_PROMPTS)
    ]
    first = await served.ask(requests, stream=True)
    for _ in range(_TRIES):
        again = await served.ask(requests, stream=True)
        if failed := [answer.error for answer in (*first, *again) if not answer.ok]:
            return Evidence(name=_NAME, verdict=Verdict.NO_GO, limit=_LIMIT, detail=f"Not answered: {failed[0]}")
        evidence = _compare(first, again)
        if evidence.verdict is not Verdict.ANOMALOUS:
            break
    return evidence


def _compare(first: Sequence[Generation], second: Sequence[Generation]) -> Evidence:
    streamed = statistics.median(_span(one) / one.total_seconds for one in first) >= _STREAMED
    fresh, repeated = (
        statistics.median(_span(one) if streamed else one.total_seconds for one in answers)
        for answers in (first, second)
    )
    ratio = repeated / fresh
    if ratio >= _LIMIT:
        verdict, detail = Verdict.GO, ""
    elif fresh < _MEASURABLE_SECONDS:
        verdict, detail = Verdict.INCONCLUSIVE, f"Answers take {1e3 * fresh:.3g} ms: too short to tell."
    else:
        tokens = first[0].output_tokens
        verdict = Verdict.ANOMALOUS
        detail = (
            f"{tokens} tokens took {1e3 * fresh:.3g} ms, and {1e3 * repeated:.3g} ms when asked once more: a replay."
        )
    return Evidence(
        name=_NAME,
        verdict=verdict,
        measured=ratio,
        limit=_LIMIT,
        unit="of the first time",
        samples=len(first),
        detail=detail,
    )


def _span(answer: Generation) -> float:
    """Seconds from the first piece to the last."""
    return answer.chunk_seconds[-1] - answer.chunk_seconds[0]
