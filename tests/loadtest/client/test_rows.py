import numpy as np
import pytest

from llm_pipeline.loadtest.client.answer import Answer
from llm_pipeline.loadtest.client.rows import ROW, RowReader, RowWriter
from llm_pipeline.loadtest.records import COLUMNS, Fault, Records, gap_bin
from llm_pipeline.loadtest.traffic import LoadRequest

ROWS = 10_000


def answer(number: int, arrives_at: float, fault: Fault = Fault.NONE, detail: str = "") -> Answer:
    made = Answer(number, LoadRequest("p", 7), arrives_at, start=50.0, sent_at=50.001 + arrives_at)
    made.status, made.output_tokens, made.input_tokens, made.gaps = 200, 6, 5, [0.01, 0.03]
    made.first_text_at, made.last_text_at = 50.1 + arrives_at, 50.14 + arrives_at
    made.end(50.2 + arrives_at, fault, detail)
    return made


def written(answers: list[Answer]) -> RowWriter:
    writer = RowWriter()
    for made in answers:
        writer.add(made)
    return writer


def read(requests: int, *writers: RowWriter) -> Records:
    reader = RowReader(requests)
    for writer in writers:
        for block in writer.blocks():
            reader.add(bytes(block))
        reader.add_rest(np.array(writer.gap_counts), writer.details, 1.5)
    assert reader.processor_seconds == 1.5 * len(writers)
    return reader.records()


def test_a_row_has_every_column_and_a_million_of_them_are_71_megabytes():
    assert ROW.names == COLUMNS
    assert ROW.itemsize == 71


def test_rows_of_several_processes_come_back_as_they_were_in_the_order_of_arrival():
    answers = [answer(number, number * 0.5) for number in range(ROWS)]
    records = read(ROWS, written(answers[1::2][::-1]), written(answers[::2]))
    assert records["number"].tolist() == list(range(ROWS))
    row = {name: column[4321] for name, column in records.columns.items()}
    assert row["arrives_at"] == 4321 * 0.5
    assert row["lag_seconds"] == pytest.approx(0.001)
    assert (row["first_token_seconds"], row["last_token_seconds"]) == (pytest.approx(0.1), pytest.approx(0.14))
    assert (row["total_seconds"], row["longest_gap_seconds"]) == (pytest.approx(0.2), 0.03)
    assert [row[name] for name in ("input_tokens", "output_tokens", "asked_tokens", "status")] == [5, 6, 7, 200]
    assert row["fault"] == Fault.NONE
    assert records.gap_counts[gap_bin(0.01)] == records.gap_counts[gap_bin(0.03)] == ROWS


def test_requests_that_no_user_came_to_send_are_no_rows():
    records = read(5, written([answer(0, 0.0), answer(2, 0.7)]), written([answer(1, 0.9)]))
    assert records["number"].tolist() == [0, 2, 1]


def test_only_the_first_words_of_a_kind_of_failure_are_kept():
    first = written([answer(0, 0.0, Fault.SHED, "full"), answer(1, 0.1, Fault.SHED, "still full")])
    assert read(3, first, written([answer(2, 0.2, Fault.CUT, "cut")])).details == {
        Fault.SHED: "full", Fault.CUT: "cut"
    }  # fmt: skip


def test_more_tokens_than_any_answer_has_are_a_fault_and_no_end_of_the_client():
    answer = Answer(0, LoadRequest("p", 4), 0.0, 0.0, 0.0)
    answer.status = 200
    choices = '"choices": [{"text": "a", "finish_reason": "length"}]'
    answer.take(f'data: {{"model": "m", {choices}, "usage": {{"completion_tokens": 1000000000}}}}\n\n'.encode(), 1.0)
    answer.take(b"data: [DONE]\n\n", 1.0)
    answer.complete(2.0)
    rows = RowWriter()
    rows.add(answer)
    assert (rows.count, answer.fault) == (1, Fault.LONG)
