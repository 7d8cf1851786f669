"""The probe that tells replays from generations, by what no load can forge: counts, pieces and chance."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from llm_pipeline.base.verdict import Evidence
from llm_pipeline.serving import probes
from llm_pipeline.serving.client import Generation, GenerationRequest
from llm_pipeline.serving.probes import repeats_are_generated

TOKENS = 100


def answer(pieces: int, seconds: float, text: str = "x", error: str = "") -> Generation:
    chunks = [0.01 + seconds * number / pieces for number in range(pieces)]
    return Generation(
        text=text, output_tokens=TOKENS, finish_reason="length", status=200, error=error,
        first_token_seconds=chunks[0], total_seconds=chunks[-1], chunk_seconds=chunks,
    )  # fmt: skip


class Scripted:
    """A server whose rounds of answers are known.

    Args:
        rounds: Pieces and seconds of the answers of each round.
        counts: Share of the tokens that the server counts; None for one that counts nothing.
        draws: Texts of the answers that are drawn, in turn; none for a server that refuses a temperature.
    """

    context, any_prompt = 400, "a prompt"

    def __init__(
        self, *rounds: tuple[int, float], counts: float | None = 1.0, draws: Iterator[str] | None = None
    ) -> None:
        self.rounds, self.counts, self.draws = list(rounds), counts, draws
        self.asked: list[list[str]] = []
        self.counted = 7.0

    async def ask(self, requests: Sequence[GenerationRequest], *, stream: bool = False) -> list[Generation]:
        self.asked.append([request.prompt for request in requests])
        if requests[0].temperature:
            drawn = self.draws
            return [answer(9, 0.1, next(drawn)) if drawn else answer(9, 0.1, error="greedy only") for _ in requests]
        assert stream
        self.counted += (self.counts or 0.0) * TOKENS * len(requests)
        return [answer(*self.rounds[0])] * len(requests) if len(self.rounds) == 1 else self._next(len(requests))

    def _next(self, count: int) -> list[Generation]:
        return [answer(*self.rounds.pop(0))] * count

    async def generated_tokens(self) -> int | None:
        return None if self.counts is None else int(self.counted)


def judged(served: Scripted) -> Evidence:
    return asyncio.run(repeats_are_generated(served))  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [0.0, 8.0])
@pytest.mark.parametrize("again", [0.0, 0.0296, 8.0])
def test_no_time_makes_a_generation_a_replay_or_undecided(seconds: float, again: float) -> None:
    assert judged(Scripted((TOKENS, seconds), (TOKENS, again))).verdict == "GO"


def test_every_run_asks_prompts_that_nobody_asked_before() -> None:
    runs = [Scripted((TOKENS, 1.0)), Scripted((TOKENS, 1.0))]
    for served in runs:
        judged(served)
        assert served.asked[0] == served.asked[1]
    assert not set(runs[0].asked[0]) & set(runs[1].asked[0])


def test_answers_that_the_server_did_not_count_were_not_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_COUNTED_WITHIN_SECONDS", 0.1)
    evidence = judged(Scripted((TOKENS, 1.0), counts=0.0))
    assert evidence.verdict == "ANOMALOUS"
    assert "300 tokens came for repeated requests, and the server generated 0" in evidence.detail


def test_answers_in_one_piece_every_time_are_replayed_whatever_the_server_counts() -> None:
    assert judged(Scripted((TOKENS, 1.0), (1, 1.0), (1, 1.0), (1, 1.0))).verdict == "ANOMALOUS"
    assert judged(Scripted((TOKENS, 1.0), (1, 1.0), (TOKENS, 1.0))).verdict == "GO"
    assert judged(Scripted((2, 1.0), (1, 1.0))).verdict == "GO"  # so it always sends
    assert judged(Scripted((TOKENS, 1.0), (8, 1.0))).verdict == "GO"  # drafts of twelve tokens


@pytest.mark.parametrize(("late", "verdict"), [(True, "INCONCLUSIVE"), (False, "NO_GO")])
def test_no_answer_in_time_is_no_wrong_answer(late: bool, verdict: str) -> None:
    class Busy(Scripted):
        def _next(self, count: int) -> list[Generation]:
            return [replace(super()._next(1)[0], error="no complete answer within 30 s", late=late)] * count

    evidence = judged(Busy((TOKENS, 1.0), (TOKENS, 1.0)))
    assert (evidence.verdict, evidence.detail) == (verdict, "Not answered: no complete answer within 30 s")


def test_without_a_count_chance_tells_and_without_chance_nobody_can() -> None:
    different, equal = (iter(f"text {number}" for number in range(6)), iter(["text"] * 6))
    assert judged(Scripted((TOKENS, 1.0), counts=None, draws=different)).verdict == "GO"
    assert judged(Scripted((TOKENS, 1.0), counts=None, draws=equal)).verdict == "ANOMALOUS"
    evidence = judged(Scripted((TOKENS, 1.0), counts=None))
    assert evidence.verdict == "INCONCLUSIVE"
    assert "llm_tokens_total" in evidence.detail
