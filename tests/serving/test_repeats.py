"""The probe that tells replays from generations, on answers of known times."""

from __future__ import annotations

import asyncio

import pytest

from llm_pipeline.serving.client import Generation
from llm_pipeline.serving.probing.repeats import repeats_are_generated

GENERATED, AT_ONCE = 0.08, 0.0002


def answer(span: float) -> Generation:
    chunks = tuple(0.01 + span * number / 31 for number in range(32))
    return Generation(
        text="x", output_tokens=32, finish_reason="length", status=200, error="", sent_at=0.0,
        first_token_seconds=chunks[0], total_seconds=chunks[-1], chunk_seconds=chunks, served_version=1,
    )  # fmt: skip


class Scripted:
    """A server whose rounds of answers take known times."""

    context, any_prompt = 400, "a prompt"

    def __init__(self, *rounds: float) -> None:
        self.rounds = list(rounds)

    async def ask(self, requests, *, stream):
        assert stream
        span = self.rounds.pop(0)
        return [answer(span) for _ in requests]


@pytest.mark.parametrize(
    ("rounds", "verdict", "left"),
    [
        ((GENERATED, GENERATED, AT_ONCE), "GO", 1),
        ((GENERATED, AT_ONCE, GENERATED), "GO", 0),
        ((GENERATED, AT_ONCE, AT_ONCE, GENERATED), "GO", 0),
        ((GENERATED, AT_ONCE, AT_ONCE, AT_ONCE), "ANOMALOUS", 0),
    ],
)
def test_a_client_that_was_held_up_is_no_replay_and_a_replay_is_one_every_time(rounds, verdict, left):
    served = Scripted(*rounds)
    evidence = asyncio.run(repeats_are_generated(served))
    assert (evidence.verdict.value, len(served.rounds)) == (verdict, left)
