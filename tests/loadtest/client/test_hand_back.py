"""What a client process hands back of failures: few words, and nothing of the keys that it sent."""

from __future__ import annotations

import json
from multiprocessing import Pipe

import pytest

from llm_pipeline.loadtest.client.answer import Answer
from llm_pipeline.loadtest.client.rows import Rows
from llm_pipeline.loadtest.client.serving import hand_back
from llm_pipeline.loadtest.traffic import LoadRequest

SECRET = "5esame-0pen"


@pytest.mark.parametrize("status", [200, 503])
@pytest.mark.parametrize("before", range(255, 300, 6))
def test_no_part_of_a_key_is_handed_back_wherever_the_reason_is_cut(status: int, before: int) -> None:
    said = "x" * before + SECRET + "y" * 500
    rows = Rows()
    for body in (f"data: {json.dumps({'error': said})}\n\n", f"data: {said}\n\n", f"{said}\n\n"):
        answer = Answer(0, LoadRequest("p", 3), 0.0, 0.0, 0.0)
        answer.status = status
        answer.take(body.encode(), 1.0)
        answer.complete(2.0)
        rows.add(answer)
    parent, client = Pipe()
    with parent, client:
        hand_back(client, rows, [SECRET])
        _, details = parent.recv()
    assert details
    assert all("5es" not in detail and len(detail) <= 300 for detail in details.values())
