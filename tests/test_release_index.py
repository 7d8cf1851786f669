"""The index of a store's releases: few reads, and never another answer than the records give."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from store_history import GO, NO_GO, Counting, History

from llm_pipeline.inspection import release_index
from llm_pipeline.inspection.release_index import index_release, read_indexed, read_releases
from llm_pipeline.release.changes import changed_releases, changing
from llm_pipeline.release.record import release_record_name


@pytest.fixture
def history(tmp_path: Path) -> History:
    history = History(tmp_path, keep_releases=1, keep_days=1)
    for number in range(1, 4):
        history.release(number)
    read_releases(history.store)
    return history


def says_what_the_records_say(history: History) -> list[str]:
    found = read_releases(history.store).whole
    assert list(found) == sorted(
        (read_indexed(history.store, one.row.release_id) for one in found),
        key=lambda one: one.row.resolved_at,
        reverse=True,
    )
    return [one.row.release_id for one in found]


def fold(history: History, release_id: str) -> None:
    index_release(history.store, release_id)
    assert release_id not in changed_releases(history.store)


def test_a_change_is_seen_at_once_and_costs_nothing_once_it_is_in_the_index(history):
    first = read_releases(history.store).whole[-1].row
    with changing(history.store, first.release_id):
        history.stage(first.release_id, "load_test", "cpu", judgement=NO_GO)
    assert read_releases(history.store).whole[-1].row.verdict == "NO_GO"
    fold(history, first.release_id)
    counting = Counting(history.store)
    assert read_releases(counting).whole[-1].row.verdict == "NO_GO"
    assert counting.asked["read_document"] == 1


@pytest.mark.parametrize("when", ["before the change", "after the change"])
def test_a_process_that_dies_while_it_changes_a_release_makes_no_page_lie(history, when):
    first = read_releases(history.store).whole[-1].row.release_id
    change = changing(history.store, first)
    change.__enter__()  # and no end: the process is gone
    if when == "after the change":
        history.stage(first, "load_test", "cpu", judgement=NO_GO)
    index_release(history.store, first)
    history.stage(first, "canary", "cpu:5", judgement=NO_GO)  # the request of the dead one arrives late
    assert read_releases(history.store).whole[-1].verdicts["canary cpu:5"] == "NO_GO"
    says_what_the_records_say(history)


def test_a_change_while_the_index_is_written_stays_marked_or_is_in_it(history, monkeypatch):
    first = read_releases(history.store).whole[-1].row.release_id
    with changing(history.store, first):
        history.stage(first, "load_test", "cpu", judgement=GO)
    read, changes = read_indexed, iter(["canary cpu:5", "canary cpu:100"])

    def slowly(store: Any, release_id: str) -> Any:
        found = read(store, release_id)
        for change in changes:  # between the reading and the writing: another process
            stage, subject = change.split()
            with changing(store, release_id):
                history.stage(release_id, stage, subject, judgement=NO_GO)
            if subject == "cpu:5":
                index_release(store, release_id)
        return found

    monkeypatch.setattr(release_index, "read_indexed", slowly)
    index_release(history.store, first)
    monkeypatch.undo()
    assert {"canary cpu:5", "canary cpu:100"} <= read_releases(history.store).whole[-1].verdicts.keys()
    says_what_the_records_say(history)


@pytest.mark.parametrize("content", [None, b"", b'{"revision": "1", "value": {"releases": {"tiny": {}}}}'])
def test_an_index_that_is_missing_damaged_or_of_another_format_is_made_anew(history, content):
    file = history.root / "store/index/releases.json"
    file.unlink() if content is None else file.write_bytes(content)
    assert len(says_what_the_records_say(history)) == 3
    counting = Counting(history.store)
    read_releases(counting)
    assert counting.asked["read_document"] == 1


def test_a_damaged_release_is_told_each_time_and_shown_once_it_is_mended(history):
    (history.root / "store/index/releases.json").unlink()
    name = release_record_name("tiny-00000002-00000064")
    file = history.root / "store" / name
    whole = file.read_bytes()
    file.write_bytes(b"{")
    for _ in range(2):
        found = read_releases(history.store)
        assert (len(found.whole), len(found.damaged)) == (2, 1)
    file.write_bytes(whole)
    assert len(read_releases(history.store).whole) == 3


def test_the_index_holds_the_newest_only_and_an_older_one_that_is_resolved_again(tmp_path, monkeypatch):
    monkeypatch.setattr(release_index, "INDEXED", 2)
    history = History(tmp_path)
    releases = []
    for number in (1, 2, 3):
        history.pass_days(1)
        releases.append(history.release(number))
    first, second, third = releases
    assert says_what_the_records_say(history) == [third, second, first]  # read from the records, once
    assert says_what_the_records_say(history) == [third, second]
    index_release(history.store, first)
    assert says_what_the_records_say(history) == [third, second]
    history.pass_days(1)
    with changing(history.store, first):
        history.resolve(1)
        assert says_what_the_records_say(history) == [first, third, second]
    fold(history, first)
    assert says_what_the_records_say(history) == [first, third]
