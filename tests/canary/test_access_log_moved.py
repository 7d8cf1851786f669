"""An access log that is renamed or deleted while it is read; the writer holds it as Envoy does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from test_observations import ADDRESSES, line

from llm_pipeline.canary.access_log import AccessLog, LogCursor


class Writer:
    """Appends to the file that it opened, whatever became of its name; `reopen` opens the name again."""

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
