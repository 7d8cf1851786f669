from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_pipeline.canary.access_log import AccessLog, LogCursor, ObservedRequest
from llm_pipeline.canary.metrics import METRICS, value_of
from llm_pipeline.canary.timeline import timeline

ADDRESSES = {"127.0.0.1:1": "blue", "127.0.0.1:2": "green"}


def line(**changes) -> str:
    entry = {
        "started_at": "100.000",
        "cluster": "blue",
        "host": "127.0.0.1:1",
        "code": 200,
        "grpc_status": None,
        "flags": "-",
        "first_byte_ms": 5,
        "total_ms": 9,
        "attempts": 1,
        "path": "/v1/completions",
        "reported_error": None,
    }
    return json.dumps({**entry, **changes}) + "\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "access.jsonl"


def log(path: Path) -> AccessLog:
    return AccessLog(path, ADDRESSES.get)


def one(log_path: Path, **changes) -> ObservedRequest:
    log_path.write_text(line(**changes))
    (request,) = log(log_path).read(LogCursor())[0]
    return request


def test_a_request_is_read_with_its_arm_and_times(path) -> None:
    request = one(path, cluster="green_failover", host="127.0.0.1:2", path="/v1/completions?x=1", stream="1")
    assert (request.arm, request.on_trial, request.streaming) == ("green", True, True)
    assert (request.first_byte_milliseconds, request.total_milliseconds, request.started_at) == (5.0, 9.0, 100.0)
    assert (request.error, request.fault, request.lost) == (False, False, False)


@pytest.mark.parametrize(
    "hidden",
    [
        {"host": "127.0.0.1:1", "attempts": 2},
        {"host": "127.0.0.1:1", "attempts": 1},
        {"host": "127.0.0.1:2", "attempts": 2},
    ],
    ids=["answered by stable", "ejected", "second attempt"],
)
def test_a_failure_that_failover_hid_is_charged_to_the_candidate_and_not_lost(path, hidden) -> None:
    request = one(path, cluster="green_failover", **hidden)
    assert (request.fault, request.error, request.lost) == (True, True, False)


@pytest.mark.parametrize("cluster", ["blue_backed", "blue_grpc_backed"])
def test_what_the_candidate_answered_for_stable_is_stables_fault_and_not_lost(path, cluster) -> None:
    request = one(path, cluster=cluster, host="127.0.0.1:2", attempts=2)
    assert (request.arm, request.on_trial) == ("blue", False)
    assert (request.fault, request.error, request.lost) == (True, True, False)


@pytest.mark.parametrize(
    "failure", [{"code": 503}, {"code": 0}, {"flags": "UC"}, {"grpc_status": 14}, {"reported_error": "1"}]
)
def test_a_failure_that_a_user_saw_is_lost(path, failure) -> None:
    request = one(path, **failure)
    assert (request.fault, request.lost) == (True, True)


def test_a_request_that_both_versions_refuse_is_nobodys_fault(path) -> None:
    """The flag says that there were no more retries, not that anything failed."""
    request = one(path, code=400, attempts=2, flags="URX", reported_error="1", cluster="green_failover")
    assert (request.fault, request.refused) == (False, True)


def test_a_request_that_the_router_refuses_is_nobodys_fault(path) -> None:
    request = one(path, code=413, attempts=0, host=None, cluster="green_failover")
    assert (request.fault, request.refused) == (False, True)


def test_a_user_who_goes_away_is_no_failure(path) -> None:
    request = one(path, code=0, flags="DC")
    assert (request.cancelled, request.error, request.fault) == (True, False, False)


def test_an_answer_is_read_with_what_it_told(path) -> None:
    told = {"has_text": "1", "output_tokens": 12, "finish_reason": "stop", "stream_ms": 55}
    request = one(path, stream="1", **told)
    assert (request.output_tokens, request.finish_reason) == (12, "stop")
    assert (request.empty, request.truncated) == (False, False)
    assert request.per_token_milliseconds == 5.0


@pytest.mark.parametrize(
    ("reason", "truncated"), [(None, True), ("cancelled", True), ("stop", False), ("length", False)]
)
def test_an_answer_without_a_final_chunk_or_given_up_by_the_server_is_truncated(path, reason, truncated) -> None:
    assert one(path, has_text="1", finish_reason=reason).truncated is truncated


def test_an_answer_without_text_is_empty(path) -> None:
    assert one(path, has_text="0", output_tokens=3).empty is True


@pytest.mark.parametrize(
    "unread",
    [
        {"path": "/v2/models/llm/generate"},
        {"path": "/inference.GRPCInferenceService/ModelInfer"},
        {"has_text": None},
        {"has_text": "0", "code": 503},
    ],
    ids=["Triton's API", "gRPC", "broken off", "an error"],
)
def test_of_an_answer_that_was_not_read_nothing_is_known(path, unread) -> None:
    request = one(path, **unread)
    assert (request.output_tokens, request.empty, request.truncated) == (None, None, None)


def test_a_line_is_read_once_and_only_when_it_is_whole(path) -> None:
    path.write_text(line() + line()[:20])
    requests, cursor = log(path).read(LogCursor())
    assert len(requests) == 1
    path.write_text(line() + line())
    requests, cursor = log(path).read(cursor)
    assert len(requests) == 1
    assert log(path).read(cursor)[0] == []


def test_a_truncated_log_is_read_from_its_start(path) -> None:
    path.write_text(line() * 3)
    _, cursor = log(path).read(LogCursor())
    path.write_text(line(started_at="7"))
    assert [request.started_at for request in log(path).read(cursor)[0]] == [7.0]


def test_a_missing_log_is_no_requests(path) -> None:
    assert log(path).read(LogCursor()) == ([], LogCursor())
    assert log(path).end() == LogCursor()


def test_the_end_of_a_long_log_is_behind_its_last_whole_line(path) -> None:
    whole = line() * 20_000
    path.write_text(whole + '{"started_at": "1')
    assert log(path).end() == log(path).read(LogCursor())[1]
    assert log(path).end().offset == len(whole)


def test_the_timeline_shows_both_arms_and_the_intended_share(path) -> None:
    path.write_text(
        line(started_at="100.2")
        + line(started_at="101.5", cluster="green_failover", host="127.0.0.1:2", stream="1", first_byte_ms=30)
        + line(started_at="101.6", cluster="green_failover", attempts=2)
    )
    requests, _ = log(path).read(LogCursor())
    points = timeline(requests, [(101.0, 0.25)], candidate="green", began_at=100.0)
    assert [(p.at_seconds, p.stable.requests, p.candidate.requests) for p in points] == [(0.0, 1, 0), (1.0, 0, 2)]
    assert [point.intended_share for point in points] == [0.25, 0.25]
    assert (points[1].candidate.errors, points[1].candidate.lost) == (1, 0)
    assert points[1].candidate.first_token_p50 == 30.0
    assert points[0].candidate.first_token_p50 is None
    assert points[0].candidate.per_token_p50 is None


DAMAGED = [
    b'{"half":',
    b"[]",
    b"7",
    b"null",
    b"",
    b"\xff\xfe",
    b"[" * 100_000,
    line(total_ms=float("nan")).encode(),
    line(first_byte_ms=float("inf")).encode(),
    line(attempts=float("nan")).encode(),
    line(attempts="many").encode(),
    line(started_at="nan").encode(),
    line(started_at="1e999").encode(),
    line(total_ms=-1).encode(),
    line(stream_ms=[]).encode(),
    line(code={}).encode(),
    line(output_tokens=float("nan"), has_text="1").encode(),
]


@pytest.mark.parametrize("damage", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_line_is_counted_and_left_out_and_ends_nothing(path, damage) -> None:
    path.write_bytes(line(started_at="1").encode() + damage.strip() + b"\n" + line(started_at="2").encode())
    reader = log(path)
    assert [request.started_at for request in reader.read(LogCursor())[0]] == [1.0, 2.0]
    assert reader.damaged == 1


@pytest.mark.parametrize(("status", "refused"), [(0, None), (3, True), (5, True), (12, True), (1, False), (10, False)])
def test_a_grpc_status_is_a_refusal_or_a_fault(path, status, refused) -> None:
    request = one(path, path="/inference.GRPCInferenceService/ModelInfer", cluster="blue_grpc", grpc_status=status)
    assert (request.error, request.refused, request.fault) == (refused is not None, bool(refused), refused is False)


@pytest.mark.parametrize("route", ["/v2/models/llm/generate", "/inference.GRPCInferenceService/ModelInfer"])
def test_of_tritons_own_api_the_status_alone_is_judged(path, route) -> None:
    well, failed = one(path, path=route, total_ms=70_000), one(path, path=route, code=503)
    values = [[value_of(request, metric) for metric in METRICS] for request in (well, failed)]
    assert values == [[0.0, None, None, None], [1.0, None, None, None]]


def test_how_slowly_a_user_sends_is_no_time_of_the_server(path) -> None:
    request = one(path, asked_ms=700, first_byte_ms=705, total_ms=709)
    assert (request.first_byte_milliseconds, request.total_milliseconds) == (5.0, 9.0)
