"""What a new release is compared with is found by as many requests in a full store as in an empty one."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from store_history import History

from llm_pipeline.release.newest import newest_of_config, note_release
from llm_pipeline.release.record import read_release_record, release_record_name
from llm_pipeline.stages.resolve import released_before


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path)


def resolved(history: History, numbers: range, config: str = "tiny") -> list[str]:
    found = []
    for number in numbers:
        history.pass_days(1)
        found.append(history.resolve(number, config))
    return found


def test_releases_of_a_config_come_the_newest_first(history):
    first, second = resolved(history, range(1, 3))
    resolved(history, range(3, 4), "other")
    assert newest_of_config(history.store, "tiny") == (second, first)
    assert newest_of_config(history.store, "unknown") == ()
    resolved(history, range(1, 2))  # again
    assert newest_of_config(history.store, "tiny") == (first, second)


def test_releases_that_are_noted_at_the_same_moment_are_all_there(history):
    records = [read_release_record(history.store, release_id) for release_id in resolved(history, range(6))]
    (history.root / "store/index/resolved/tiny.json").unlink()
    threads = [threading.Thread(target=note_release, args=(history.store, record)) for record in records]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(newest_of_config(history.store, "tiny")) == len(records)


def test_the_licence_is_compared_with_that_of_the_newest_release_that_fetched_something(history):
    fetched, _resolved_only, removed = resolved(history, range(1, 4))
    for release_id in (fetched, removed):
        history.stage(release_id, "download", produces=("checkpoint",))
    history.store.delete_document(release_record_name(removed))
    found = released_before(history.store, "tiny")
    assert found is not None
    assert found.release_id == fetched
    assert released_before(history.store, "never-released") is None
