"""One answer, byte by byte: what it is judged to be, and what is handed back of it."""

import json
import math
from multiprocessing import Pipe

import numpy as np
import pytest
from scripted_server import chunk as event

from llm_pipeline.loadtest.client.serving import Answer, hand_back
from llm_pipeline.loadtest.records import Fault
from llm_pipeline.loadtest.traffic import LoadRequest

SECRET = "5esame-0pen"


DONE = b"data: [DONE]\n\n"


def answer_to(maximum_tokens: int = 3, **asked: object) -> Answer:
    answer = Answer(LoadRequest("p", maximum_tokens, **asked))
    answer.status = 200
    return answer


def judged(answer: Answer, *bodies: bytes) -> Fault:
    for moment, body in enumerate(bodies):
        answer.take(body, 102.0 + moment)
    answer.complete(110.0)
    return answer.fault


WHOLE = [event("a", 1), event("é ", 2), event("c", 3, "length"), DONE]


def test_a_whole_answer_is_the_same_however_its_bytes_are_cut():
    body = b"".join(WHOLE)
    for size in (1, 2, 7, len(body)):
        answer = answer_to()
        pieces = [body[start : start + size] for start in range(0, len(body), size)]
        assert judged(answer, *pieces) is Fault.NONE
        assert answer.reader.tokens == 3
    assert answer.longest_gap == 0.0, "three events of one packet came at one moment"


def test_lines_may_end_in_carriage_returns_and_the_last_one_in_nothing():
    body = b"".join(WHOLE).replace(b"\n", b"\r\n")
    assert judged(answer_to(), b": a comment\r\n\r\n" + body) is Fault.NONE
    assert judged(answer_to(), b"".join(WHOLE).rstrip()) is Fault.NONE


def test_the_first_token_is_the_first_chunk_with_text():
    answer = answer_to(4)
    usage = json.dumps({"model": "llm", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 4}}).encode()
    bodies = [event("", 0), event("", 1), event("word", 2), event(" more", 3), event("", 4, "length")]
    assert math.isnan(answer.first_text_at)
    assert judged(answer, *bodies, b"data: " + usage + b"\n\n", DONE) is Fault.NONE
    assert (answer.reader.tokens, answer.reader.input_tokens) == (4, 7)
    assert answer.first_text_at == 104.0
    assert answer.last_text_at == 105.0, "the end of the answer brought no text"
    assert answer.longest_gap == 1.0, "a chunk that brings nothing neither begins nor ends a silence"


@pytest.mark.parametrize(
    ("bodies", "fault", "said"),
    [
        ([*WHOLE[:2]], Fault.CUT, "final chunk is missing after 2 tokens"),
        ([*WHOLE[:3]], Fault.CUT, "end mark [DONE] is missing"),
        ([event("a", 1, "length"), DONE], Fault.SHORT, "only 1 of 3"),
        ([event("a", 4, "length"), DONE], Fault.LONG, "4 tokens came, 3"),
        ([event("", 3, "length"), DONE], Fault.EMPTY, "without any text"),
        ([WHOLE[0], event("", 1, "abort"), DONE], Fault.CANCELLED, "after 1 tokens: cancelled"),
        ([WHOLE[0], event("", 1, "broken"), DONE], Fault.ERROR_IN_ANSWER, "broken"),
        ([WHOLE[0], b'data: {"error": "CUDA out of memory"}\n\n'], Fault.ERROR_IN_ANSWER, "CUDA out of memory"),
        ([*WHOLE, WHOLE[0]], Fault.MALFORMED, "not an answer"),
        ([b'data: {"text": "a"}\n\n'], Fault.MALFORMED, "not an answer"),
        ([b"data: " + b"[" * 200_000 + b"\n\n"], Fault.MALFORMED, "not an answer"),
        ([b"x" * 65536] * 80, Fault.MALFORMED, "bytes without an end"),
        ([b"upstream connect error: no healthy upstream"], Fault.MALFORMED, "no healthy upstream"),
        ([b"<html>\n<body>Bad ", b"Gateway</body>\n</html>\n"], Fault.MALFORMED, "Bad Gateway"),
        ([b'{"error": "CUDA out of memory"}\n'], Fault.ERROR_IN_ANSWER, "CUDA out of memory"),
        ([WHOLE[0], b"worker 3 has died\n"], Fault.CUT, "after 1 tokens; the server said: worker 3 has died"),
        ([b": ping\n\nevent: token\nid: 7\nretry: 10\n\n"], Fault.CUT, "final chunk is missing after 0 tokens"),
    ],
)
def test_every_rule_has_its_kind_of_fault_and_says_why(bodies: list[bytes], fault: Fault, said: str):
    answer = answer_to()
    assert judged(answer, *bodies) is fault
    assert said in answer.detail


@pytest.mark.parametrize(
    ("status", "body", "fault", "said"),
    [
        *((status, b'{"error": "no place"}', Fault.SHED, "no place") for status in (429, 503)),
        *((status, b'{"error": "no place"}', Fault.REFUSED, "no place") for status in (400, 500)),
        (400, b"", Fault.REFUSED, "no reason given"),
    ],
)
def test_another_status_is_a_refusal_whose_reason_is_kept(status: int, body: bytes, fault: Fault, said: str):
    answer = answer_to()
    answer.status = status
    assert judged(answer, body[:5], body[5:]) is fault
    assert answer.detail == f"HTTP {status}: {said}"


def test_a_connection_that_breaks_before_within_and_after_the_answer():
    before = answer_to()
    before.status = 0
    before.break_off(105.0, "reset")
    within, after = answer_to(), answer_to()
    within.take(b"".join(WHOLE)[:-20], 102.0)
    after.take(b"".join(WHOLE), 102.0)
    for answer in (within, after):
        answer.break_off(105.0, "reset")
    assert [a.fault for a in (before, within, after)] == [Fault.CONNECTION, Fault.CUT, Fault.NONE]


def test_the_user_leaves_after_so_many_tokens_but_not_an_answer_that_has_ended():
    leaving = answer_to(cancel_after_tokens=2)
    leaving.take(WHOLE[0], 102.0)
    assert leaving.fault is Fault.NONE
    leaving.take(WHOLE[1], 103.0)
    leaving.complete(104.0)
    assert leaving.fault is Fault.LEFT
    assert judged(answer_to(cancel_after_tokens=3), *WHOLE) is Fault.NONE, "it is whole"


@pytest.mark.parametrize("status", [200, 503])
@pytest.mark.parametrize("before", range(255, 300, 6))
def test_no_part_of_a_key_is_handed_back_wherever_the_reason_is_cut(status: int, before: int) -> None:
    said, details = "x" * before + SECRET + "y" * 5000, {}
    for body in (f"data: {json.dumps({'error': said})}\n\n", f"data: {said}\n\n", f"{said}\n\n"):
        answer = answer_to()
        answer.status = status
        details[judged(answer, body.encode())] = answer.detail
    assert all(len(detail) < 5000 for detail in details.values())
    parent, client = Pipe()
    with parent, client:
        hand_back(client, np.zeros((0, 12)), details, [SECRET])
        _, told = parent.recv()
    assert told.keys() == details.keys()
    assert all("5es" not in detail and len(detail) <= 300 for detail in told.values())
