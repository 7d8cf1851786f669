"""Retention while releases run, and retention that is killed before each of its writes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from store_history import History

from llm_pipeline import retention
from llm_pipeline.release.execute import read_stage_record, stage_record_name
from llm_pipeline.release.record import release_record_name
from llm_pipeline.retention import collect_garbage
from llm_pipeline.store import ArtifactStore
from llm_pipeline.store.lease import Lease

OLD, NEW = 1, 2
TEXT = "old weights"
WRITES = {"write_document", "delete_document", "remove", "remove_leftover"}


class Watched:
    """A store that calls `before` with each operation's number and name."""

    def __init__(self, store: ArtifactStore, before: Callable[[int, str], None], operations: set[str]) -> None:
        self._store = store
        self._before = before
        self._operations = operations
        self.seen: list[str] = []

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        if name not in self._operations:
            return attribute

        def watched(*arguments: Any, **options: Any) -> Any:
            self.seen.append(name)
            self._before(len(self.seen), name)
            return attribute(*arguments, **options)

        return watched


class Past(History):
    """Two releases of two days ago, of which the retention keeps the newer one."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, keep_releases=1, keep_days=1.0)
        self.pass_days(-2)
        self.old = self.resolve(OLD)
        made = self.stage(self.old, "download", config={"commit": 1}, content=TEXT, produces=("checkpoint",))
        self.key, self.ref = made.key, made.artifacts["checkpoint"]
        self.pass_days(0.1)
        self.new = self.resolve(NEW)
        self.stage(self.new, "download", produces=("checkpoint",))
        self.now = datetime.now(UTC)
        past = (self.now - timedelta(days=2)).timestamp()
        for marker in (root / "store").glob("artifacts/*/*/_COMPLETE.json"):
            os.utime(marker, (past, past))

    def collect(self, store: ArtifactStore | Watched) -> retention.RetentionReport:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(retention, "open_store", lambda _config: store)
            return collect_garbage(self.deployment, delete=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)  # no power is cut here


@pytest.mark.parametrize("way", ["published", "reused"])
def test_an_old_artifact_that_comes_into_use_before_its_turn_stays(tmp_path: Path, way: str):
    past = Past(tmp_path)

    def before(_number: int, _name: str) -> None:
        if way == "published":
            assert past.publish("checkpoint", TEXT) == past.ref
        else:
            assert past.store.renew(past.ref)

    report = past.collect(Watched(past.store, before, {"remove"}))
    assert f"artifact {past.ref}, which came into use meanwhile" in report.skipped
    assert past.store.verify(past.ref) == []


def test_an_artifact_that_was_removed_is_published_again(tmp_path: Path):
    past = Past(tmp_path)
    past.collect(past.store)
    assert not past.store.renew(past.ref)
    assert past.publish("checkpoint", TEXT) == past.ref
    assert past.store.verify(past.ref) == []


def test_a_retention_that_is_killed_before_any_write_is_finished_by_the_next(tmp_path: Path):
    counting = Past(tmp_path / "count")
    watched = Watched(counting.store, lambda _number, _name: None, WRITES)
    counting.collect(watched)
    assert not counting.store.exists(counting.ref)
    for number in range(1, len(watched.seen) + 1):
        past = Past(tmp_path / str(number))
        killed_before(past, number)
        if past.store.exists(past.ref):
            assert past.store.verify(past.ref) == []
        past.collect(past.store)
        assert not past.store.exists(past.ref)
        assert not past.store.list_documents(f"releases/{past.old}")
        assert past.store.read_document(release_record_name(past.new)) is not None
        assert [past.store.verify(ref) for ref in past.artifacts_of(past.new)] == [[]]


def killed_before(past: Past, write: int) -> None:
    """A retention run in a process of its own that is killed before that write."""
    child = os.fork()
    if child == 0:

        def kill(number: int, _name: str) -> None:
            if number == write:
                os._exit(9)

        past.collect(Watched(past.store, kill, WRITES))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_a_release_that_is_resolved_again_before_its_documents_go_stays(tmp_path: Path):
    past = Past(tmp_path)

    def before(number: int, _name: str) -> None:
        if number == 1:
            past.resolve(OLD)

    past.store.write_document("runs/dag/1.json", {"release_id": past.old}, None)  # goes before the release
    report = past.collect(Watched(past.store, before, {"delete_document"}))
    assert f"release {past.old}, which came into use meanwhile" in report.skipped
    assert past.store.read_document(release_record_name(past.old)) is not None


def test_a_stage_that_is_computed_meanwhile_keeps_its_lease(tmp_path: Path):
    past = Past(tmp_path)
    held: list[Lease] = []

    def before(number: int, _name: str) -> None:
        if number == 1:
            held.append(Lease(past.store, stage_record_name(past.key)).__enter__())

    past.collect(Watched(past.store, before, {"delete_document"}))
    (lease,) = held
    lease.conclude(lease.conclusion or {})
    assert read_stage_record(past.store, past.key) is not None
