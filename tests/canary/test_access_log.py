"""The access log line by line, and one that is renamed or deleted while it is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from place_here import canary_record

from llm_pipeline.canary.access_log import AccessLog, LogCursor, ObservedRequest
from llm_pipeline.canary.metrics import METRICS, value_of
from llm_pipeline.canary.record import CanaryEvent, EventKind
from llm_pipeline.canary.timeline import read_timeline, write_timeline

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


GREEN = {"cluster": "green_failover"}
TRITON, GRPC = {"path": "/v2/models/llm/generate"}, {"path": "/inference.GRPCInferenceService/ModelInfer"}
WELL = {"fault": False, "error": False, "lost": False}
HIDDEN = {"fault": True, "error": True, "lost": False}
LOST = {"fault": True, "lost": True}
REFUSED = {"fault": False, "refused": True}
UNREAD = {"empty": None, "truncated": None}
TOLD = {"stream": "1", "has_text": "1", "output_tokens": 12, "finish_reason": "stop"}
READ = {"empty": False, "truncated": False}


@pytest.mark.parametrize(
    ("logged", "request_is"),
    [
        (
            {**GREEN, "host": "127.0.0.1:2", "stream": "1"},
            {**WELL, "arm": "green", "on_trial": True, "streaming": True},
        ),
        (
            {"path": "/v1/completions?x=1"},
            {"first_byte_milliseconds": 5.0, "total_milliseconds": 9.0, "route": "/completions"},
        ),
        ({**GREEN, "host": "127.0.0.1:1", "attempts": 2}, HIDDEN),  # answered by stable
        ({**GREEN, "host": "127.0.0.1:1", "attempts": 1}, HIDDEN),  # it was ejected
        ({**GREEN, "host": "127.0.0.1:2", "attempts": 2}, HIDDEN),  # its own second attempt
        (
            {"cluster": "blue_backed", "host": "127.0.0.1:2", "attempts": 2},
            {**HIDDEN, "arm": "blue", "on_trial": False},
        ),
        ({"cluster": "blue_grpc_backed", "host": "127.0.0.1:2", "attempts": 2}, {**HIDDEN, "arm": "blue"}),
        ({"cluster": "blue_backed"}, {**WELL, "arm": "blue", "on_trial": False}),
        ({"code": 503}, LOST),
        ({"code": 0}, LOST),
        ({"flags": "UC"}, LOST),
        ({"grpc_status": 14}, LOST),
        ({"reported_error": "1"}, LOST),
        ({**GREEN, "code": 400, "attempts": 2, "flags": "URX", "reported_error": "1"}, REFUSED),  # by both versions
        ({**GREEN, "code": 413, "attempts": 0, "host": None}, REFUSED),  # by the router
        *(({**GRPC, "cluster": "blue_grpc", "grpc_status": status}, REFUSED) for status in (3, 5, 12)),
        *(({**GRPC, "cluster": "blue_grpc", "grpc_status": status}, LOST) for status in (1, 10)),
        ({**GRPC, "cluster": "blue_grpc", "grpc_status": 0}, WELL),
        ({"code": 0, "flags": "DC"}, {**WELL, "cancelled": True}),
        (TOLD, READ),
        ({"has_text": "1"}, {"truncated": True}),
        ({"has_text": "1", "finish_reason": "cancelled"}, {"truncated": True}),
        ({"has_text": "1", "finish_reason": "length"}, {"truncated": False}),
        ({"has_text": "0", "output_tokens": 3}, {"empty": True}),
        *((unread, UNREAD) for unread in (TRITON, GRPC, {"has_text": None}, {"has_text": "0", "code": 503})),
        ({"asked_ms": 700, "first_byte_ms": 705, "total_ms": 709}, {"first_byte_milliseconds": 5.0}),  # a slow upload
    ],
)
def test_a_line_says_what_became_of_a_request(path, logged, request_is) -> None:
    request = one(path, **logged)
    assert {name: getattr(request, name) for name in request_is} == request_is


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
    record = canary_record("r1", began_at=100.0)
    shifted = CanaryEvent(number=1, at=101.0, kind=EventKind.SHIFTED, percent=25.0, summary="", by="it")
    write_timeline(path.parent / "canary", record.model_copy(update={"events": (shifted,)}), log(path))
    points = read_timeline(path.parent / "canary").points
    assert [(p.at_seconds, p.stable.requests, p.candidate.requests) for p in points] == [(0.0, 1, 0), (1.0, 0, 2)]
    assert [point.intended_share for point in points] == [0.25, 0.25]
    assert (points[1].candidate.errors, points[1].candidate.lost) == (1, 0)
    assert points[1].candidate.first_token_p50 == 30.0
    assert points[0].candidate.first_token_p50 is None


DAMAGED = [
    b'{"half":',
    b"[]",
    b"",
    b"\xff\xfe",
    b"[" * 100_000,
    line(total_ms=float("nan")).encode(),
    line(attempts="many").encode(),
    line(started_at="1e999").encode(),
    line(total_ms=-1).encode(),
    line(code={}).encode(),
]


@pytest.mark.parametrize("damage", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_line_is_left_out_and_ends_nothing(path, damage) -> None:
    path.write_bytes(line(started_at="1").encode() + damage.strip() + b"\n" + line(started_at="2").encode())
    assert [request.started_at for request in log(path).read(LogCursor())[0]] == [1.0, 2.0]


@pytest.mark.parametrize("route", ["/v2/models/llm/generate", "/inference.GRPCInferenceService/ModelInfer"])
def test_of_tritons_own_api_the_status_alone_is_judged(path, route) -> None:
    well, failed = one(path, path=route, total_ms=70_000), one(path, path=route, code=503)
    values = [[value_of(request, metric) for metric in METRICS] for request in (well, failed)]
    assert values == [[0.0, None, None, None], [1.0, None, None, None]]


class Writer:
    """Writes to the file that it has open, even after that was renamed; `reopen` opens the path again."""

    def __init__(self, path: Path) -> None:
        self.path, self.asked, self.stream = path, 0, path.open("a")

    def write(self, *started: float) -> None:
        self.stream.writelines(line(started_at=f"{at}") for at in started)
        self.stream.flush()

    def reopen(self) -> None:
        self.asked += 1
        self.stream.close()
        self.stream = self.path.open("a")


class Reader:
    """Reads on from where it was; what it knows is stored between the calls."""

    def __init__(self, writer: Writer, **options: int) -> None:
        self.writer, self.options, self.cursor = writer, options, LogCursor()
        self.again()

    def again(self) -> None:
        self.log = AccessLog(self.writer.path, ADDRESSES.get, reopen=self.writer.reopen, **self.options)

    def read(self, **options: int) -> list[float]:
        found, self.cursor = self.log.read(LogCursor.model_validate_json(self.cursor.model_dump_json()), **options)
        return [request.started_at for request in found]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    found = Writer(tmp_path / "access.jsonl")
    yield found
    found.stream.close()


@pytest.fixture
def reader(writer: Writer) -> Reader:
    writer.write(1)
    found = Reader(writer)
    assert found.read() == [1]
    return found


def rename(path: Path) -> None:
    path.rename(path.with_name("access.jsonl-20260101"))


def rename_and_create(path: Path) -> None:
    rename(path)
    path.touch()


@pytest.mark.parametrize("move", [rename, rename_and_create, Path.unlink])
def test_a_log_that_somebody_else_moves_is_opened_anew_by_its_writer(writer, reader, move) -> None:
    move(writer.path)
    writer.write(2)
    assert reader.read() == []
    assert writer.asked >= 1
    writer.write(3)
    assert reader.read() == [3]
    writer.write(4)
    assert (reader.read(), writer.asked <= 2) == ([4], True)


def test_a_router_that_does_not_answer_is_asked_again(writer, reader, monkeypatch) -> None:
    from llm_pipeline.canary.router import RouterUnavailable

    def down() -> None:
        writer.asked += 1
        raise RouterUnavailable("connection refused")

    monkeypatch.setattr(writer, "reopen", down)
    reader.again()
    assert reader.read() == []
    writer.path.unlink()
    assert [reader.read(), reader.read()] == [[], []]
    assert writer.asked >= 2


def test_a_long_log_is_put_aside_and_nothing_of_it_is_lost(writer) -> None:
    size = len(line(started_at="1.0"))
    reader = Reader(writer, largest_bytes=5 * size)
    seen: list[float] = []
    for at in range(40):
        writer.write(float(at))
        seen += reader.read()
    seen += reader.read()
    assert seen == list(range(40))
    assert sorted(path.name for path in writer.path.parent.iterdir()) == ["access.jsonl", "access.jsonl.1"]
    assert writer.path.stat().st_size <= 6 * size


def test_a_look_reads_a_bounded_part_and_says_that_there_is_more(writer, reader) -> None:
    writer.write(*range(2, 12))
    seen = []
    while not seen or reader.log.behind:
        seen.append(reader.read(most_bytes=3 * len(line(started_at="10"))))
        assert len(seen[-1]) <= 3
    assert [at for found in seen for at in found] == list(range(2, 12))


def test_a_log_that_nobody_reads_stays_small_and_at_its_place(writer) -> None:
    log = AccessLog(writer.path, ADDRESSES.get, reopen=writer.reopen, largest_bytes=5 * len(line()))
    for at in range(30):
        writer.write(float(at))
        log.keep()
    assert writer.path.stat().st_size <= 6 * len(line())
    writer.path.unlink()
    log.keep()
    assert writer.path.exists()
