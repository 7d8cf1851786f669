import numpy as np
import pytest

from llm_pipeline.loadtest.client.answer import Answer
from llm_pipeline.loadtest.client.rows import Rows
from llm_pipeline.loadtest.records import Fault, Records
from llm_pipeline.loadtest.traffic import LoadRequest

REQUESTS = 10_000


def answer(number: int, arrives_at: float, fault: Fault = Fault.NONE, detail: str = "") -> Answer:
    made = Answer(number, LoadRequest("p", 7), arrives_at, start=50.0, sent_at=50.001 + arrives_at)
    made.status, made.output_tokens, made.input_tokens, made.longest_gap = 200, 6, 5, 0.03
    made.first_text_at, made.last_text_at = 50.1 + arrives_at, 50.14 + arrives_at
    made.end(50.2 + arrives_at, fault, detail)
    return made


def written(answers: list[Answer]) -> Rows:
    rows = Rows()
    for made in answers:
        rows.add(made)
    return rows


def test_rows_of_several_processes_come_back_as_they_were_in_the_order_of_arrival():
    answers = [answer(number, number * 0.5) for number in range(REQUESTS)]
    parts = written(answers[1::2][::-1]), written(answers[::2])
    records = Records.of_rows(np.concatenate([part.values() for part in parts]))
    assert records["number"].tolist() == list(range(REQUESTS))
    row = {name: column[4321] for name, column in records.columns.items()}
    assert row["arrives_at"] == 4321 * 0.5
    assert row["lag_seconds"] == pytest.approx(0.001)
    assert (row["first_token_seconds"], row["last_token_seconds"]) == (pytest.approx(0.1), pytest.approx(0.14))
    assert (row["total_seconds"], row["longest_gap_seconds"]) == (pytest.approx(0.2), 0.03)
    assert [row[name] for name in ("input_tokens", "output_tokens", "asked_tokens", "status")] == [5, 6, 7, 200]
    assert row["fault"] == Fault.NONE


def test_only_the_first_words_of_a_kind_of_failure_are_kept():
    failed = [
        answer(0, 0.0, Fault.SHED, "full"),
        answer(1, 0.1, Fault.SHED, "still full"),
        answer(2, 0, Fault.CUT, "cut"),
    ]
    assert written(failed).details == {Fault.SHED: "full", Fault.CUT: "cut"}


def test_more_tokens_than_any_answer_has_are_a_fault_and_no_end_of_the_client():
    answer = Answer(0, LoadRequest("p", 4), 0.0, 0.0, 0.0)
    answer.status = 200
    choices = '"choices": [{"text": "a", "finish_reason": "length"}]'
    answer.take(f'data: {{"model": "m", {choices}, "usage": {{"completion_tokens": 1000000000}}}}\n\n'.encode(), 1.0)
    answer.take(b"data: [DONE]\n\n", 1.0)
    answer.complete(2.0)
    assert (len(written([answer])), answer.fault) == (1, Fault.LONG)
