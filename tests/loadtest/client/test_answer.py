import json
import math

import pytest

from llm_pipeline.loadtest.client.answer import Answer
from llm_pipeline.loadtest.client.messages import Target
from llm_pipeline.loadtest.records import Fault
from llm_pipeline.loadtest.traffic import LoadRequest


def event(text: object, so_far: int, reason: str | None = None) -> bytes:
    usage = {"prompt_tokens": 7, "completion_tokens": so_far}
    body = {"model": "llm", "choices": [{"text": text, "finish_reason": reason}], "usage": usage}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def answer_to(maximum_tokens: int = 3, **asked: object) -> Answer:
    answer = Answer(0, LoadRequest("p", maximum_tokens, **asked), arrives_at=1.0, start=100.0, sent_at=101.0)
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
        assert answer.output_tokens == 3
    assert answer.longest_gap == 0.0, "three events of one packet came at one moment"


def test_lines_may_end_in_carriage_returns_and_the_last_one_in_nothing():
    body = b"".join(WHOLE).replace(b"\n", b"\r\n")
    assert judged(answer_to(), b": a comment\r\n\r\n" + body) is Fault.NONE
    assert judged(answer_to(), b"".join(WHOLE).rstrip()) is Fault.NONE


def test_the_first_token_is_the_first_chunk_with_text():
    answer = answer_to(4)
    bodies = [event("", 0), event("", 1), event("word", 2), event(" more", 3), event("", 4, "length"), DONE]
    assert judged(answer, *bodies) is Fault.NONE
    assert answer.first_text_at == 104.0
    assert answer.last_text_at == 105.0, "the end of the answer brought no text"
    assert answer.longest_gap == 1.0, "a chunk that brings nothing neither begins nor ends a silence"


def test_tokens_are_those_that_the_server_counts():
    answer = answer_to(5)
    assert judged(answer, event("two words", 2), event("", 2), event("!", 5, "stop"), DONE) is Fault.NONE
    assert answer.output_tokens == 5


def test_the_tokens_of_the_prompt_are_counted_once_however_often_they_are_told():
    answer = answer_to(2)
    judged(answer, event("a", 1), event("b", 2, "length"), DONE)
    assert answer.input_tokens == 7


@pytest.mark.parametrize(
    ("bodies", "fault", "said"),
    [
        ([*WHOLE[:2]], Fault.CUT, "final chunk is missing after 2 tokens"),
        ([], Fault.CUT, "after 0 tokens"),
        ([*WHOLE[:3]], Fault.CUT, "end mark [DONE] is missing"),
        ([event("a", 1, "length"), DONE], Fault.SHORT, "only 1 of 3"),
        ([event("a", 1, "stop"), DONE], Fault.SHORT, "only 1 of 3"),
        ([event("a", 4, "length"), DONE], Fault.LONG, "4 tokens came, 3"),
        ([event("", 3, "length"), DONE], Fault.EMPTY, "without any text"),
        ([WHOLE[0], event("", 1, "abort"), DONE], Fault.CANCELLED, "after 1 tokens: cancelled"),
        ([WHOLE[0], event("", 1, "broken"), DONE], Fault.ERROR_IN_ANSWER, "broken"),
        ([WHOLE[0], b'data: {"error": "CUDA out of memory"}\n\n'], Fault.ERROR_IN_ANSWER, "CUDA out of memory"),
        ([b'data: {"error": ""}\n\n'], Fault.ERROR_IN_ANSWER, "without a message"),
        ([*WHOLE, WHOLE[0]], Fault.MALFORMED, "not an answer"),
        ([b"data: \xff\n\n"], Fault.MALFORMED, "not an answer"),
        ([b'data: {"text": "a"}\n\n'], Fault.MALFORMED, "not an answer"),
    ],
)
def test_every_rule_has_its_kind_of_fault(bodies: list[bytes], fault: Fault, said: str):
    answer = answer_to()
    assert judged(answer, *bodies) is fault
    assert said in answer.detail


@pytest.mark.parametrize(
    ("bodies", "fault", "said"),
    [
        ([b"upstream connect error: no healthy upstream"], Fault.MALFORMED, "no healthy upstream"),
        ([b"<html>\n<body>Bad ", b"Gateway</body>\n</html>\n"], Fault.MALFORMED, "Bad Gateway"),
        ([b'{"error": "CUDA out of memory"}\n'], Fault.ERROR_IN_ANSWER, "CUDA out of memory"),
        ([WHOLE[0], b"worker 3 has died\n"], Fault.CUT, "after 1 tokens; the server said: worker 3 has died"),
        ([b": ping\n\nevent: token\nid: 7\nretry: 10\n\n"], Fault.CUT, "final chunk is missing after 0 tokens"),
    ],
)
@pytest.mark.parametrize("ended", ["by its length", "by the connection"])
def test_what_a_server_says_instead_of_a_stream_is_told(bodies: list[bytes], fault: Fault, said: str, ended: str):
    answer = answer_to()
    for body in bodies:
        answer.take(body, 102.0)
    if ended == "by its length":
        answer.complete(110.0)
    else:
        answer.break_off(110.0, "the server closed the connection")
    assert answer.fault is fault
    assert said in answer.detail


def test_a_chunk_with_the_usage_alone_ends_no_silence():
    usage = json.dumps({"model": "llm", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}).encode()
    answer = answer_to()
    assert judged(answer, *WHOLE[:3], b"data: " + usage + b"\n\n", DONE) is Fault.NONE
    assert answer.longest_gap == 1.0


@pytest.mark.parametrize("text", [["a"], 5])
def test_what_is_no_text_is_malformed(text: object):
    assert judged(answer_to(), event(text, 3, "length")) is Fault.MALFORMED


@pytest.mark.parametrize(
    ("status", "fault"), [(429, Fault.SHED), (503, Fault.SHED), (400, Fault.REFUSED), (500, Fault.REFUSED)]
)
def test_another_status_is_a_refusal_whose_reason_is_kept(status: int, fault: Fault):
    answer = answer_to()
    answer.status = status
    assert judged(answer, b'{"error": "no ', b'place"}') is fault
    assert answer.detail == f"HTTP {status}: no place"


@pytest.mark.parametrize(
    ("body", "said"),
    [(b'data: {"error": "too long"}\n\n', "too long"), (b"<html>", "<html>"), (b"", "no reason given")],
)
def test_a_refusal_may_be_an_event_or_no_json_at_all(body: bytes, said: str):
    answer = answer_to()
    answer.status = 400
    assert judged(answer, body) is Fault.REFUSED
    assert answer.detail == f"HTTP 400: {said}"


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
    assert not leaving.user_leaves
    leaving.take(WHOLE[1], 103.0)
    assert leaving.user_leaves
    leaving.take(WHOLE[2], 104.0)
    assert not leaving.user_leaves, "it is whole"
    assert not answer_to().user_leaves


def test_a_detail_is_cut():
    answer = answer_to()
    judged(answer, b'data: {"error": "' + b"x" * 5000 + b'"}\n\n')
    assert len(answer.detail) < 5000


def test_an_answer_without_text_has_no_first_token():
    assert math.isnan(answer_to().first_text_at)


def test_the_head_of_a_request_names_the_host_and_carries_the_headers_which_no_text_shows():
    target = Target("::1", 8000, "/a", headers={"X-Key": "s3cret"})
    assert target.head().startswith(b"POST /a/v1/completions HTTP/1.1\r\nHost: [::1]:8000\r\n")
    assert b"\r\nX-Key: s3cret\r\n" in target.head()
    assert "s3cret" not in repr(target)


def test_an_answer_without_an_end_is_malformed_once_it_is_too_long():
    answer = answer_to()
    for _ in range(80):
        answer.take(b"x" * 65536, 102.0)
    assert answer.fault is Fault.MALFORMED
    assert answer.ended_at == 102.0


def test_deeply_nested_json_is_malformed():
    assert judged(answer_to(), b"data: " + b"[" * 200_000 + b"\n\n") is Fault.MALFORMED
