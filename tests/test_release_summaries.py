"""What the list of releases shows: one read a release, and never another answer than the records give."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_history import NO_GO, Counting, History

from llm_pipeline.inspection.release_summaries import read_releases, summarize, write_summary
from llm_pipeline.release.execute import outdate_summary, summary_name
from llm_pipeline.release.record import release_record_name


@pytest.fixture
def history(tmp_path: Path) -> History:
    history = History(tmp_path, keep_releases=1, keep_days=1)
    for number in range(1, 4):
        history.pass_days(1)
        write_summary(history.store, history.release(number))
    return history


def test_a_release_with_a_summary_costs_one_read_and_one_that_changes_is_read_from_its_records(history):
    counting = Counting(history.store)
    whole, damaged = read_releases(counting)
    assert [one.row.commit[-1] for one in whole] == ["3", "2", "1"]
    assert not damaged
    assert counting.asked["read_document"] == 3
    first = whole[-1].row.release_id
    outdate_summary(history.store, first)
    history.stage(first, "load_test", "cpu", judgement=NO_GO)
    assert read_releases(history.store)[0][-1].row.verdict == "NO_GO"
    write_summary(history.store, first)
    assert read_releases(history.store)[0][-1] == summarize(history.store, first)


@pytest.mark.parametrize("content", [b"", b'{"revision": "1", "value": {"row": {}}}'])
def test_a_summary_that_is_damaged_or_of_another_format_is_made_of_the_records(history, content):
    whole = read_releases(history.store)[0]
    (history.root / "store" / summary_name(whole[0].row.release_id)).write_bytes(content)
    assert read_releases(history.store) == (whole, [])


def test_a_damaged_release_is_told_each_time_and_shown_once_it_is_mended(history):
    release_id = read_releases(history.store)[0][1].row.release_id
    outdate_summary(history.store, release_id)
    file = history.root / "store" / release_record_name(release_id)
    record = file.read_bytes()
    file.write_bytes(b"{")
    for _ in range(2):
        whole, damaged = read_releases(history.store)
        assert (len(whole), len(damaged)) == (2, 1)
    file.write_bytes(record)
    assert len(read_releases(history.store)[0]) == 3
