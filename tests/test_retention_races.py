"""Retention while releases run, and retention that is killed: every interleaving and every write, enumerated."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from store_history import History

from llm_pipeline.base.errors import Transient
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.release.contract import StageResult, Timings
from llm_pipeline.release.execute import read_stage_record, results_name
from llm_pipeline.release.record import record_name as release_name
from llm_pipeline.retention import collection
from llm_pipeline.retention.collection import collect_garbage
from llm_pipeline.store import ArtifactStore
from llm_pipeline.store import pending_deletion as condemned_artifacts
from llm_pipeline.store.pending_deletion import Condemnation, publish_spared, read_condemned
from llm_pipeline.store.signed_documents import replace_document

OLD, NEW, RUNNING = 1, 2, 3
TEXT = "old weights"
WRITES = {"write_document", "delete_document", "remove", "remove_leftover"}
READ_FIRST = {"condemned", "stages", "releases"}
CALLS = WRITES | {"list_documents", "artifacts"}


class Watched:
    """A store that calls `before` with each operation's number and name."""

    def __init__(self, store: ArtifactStore, before: Callable[[int, str], None], operations: set[str]) -> None:
        self._store = store
        self._before = before
        self._operations = operations
        self.seen: list[str] = []

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        if name not in self._operations or threading.current_thread() is not threading.main_thread():
            return attribute

        def watched(*arguments: Any) -> Any:
            if name == "list_documents" and arguments[0] not in READ_FIRST:
                return attribute(*arguments)
            self.seen.append(name)
            self._before(len(self.seen), name)
            return attribute(*arguments)

        return watched


class Past(History):
    """Two releases of two days ago, of which the retention keeps the newer one."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, keep_releases=1, keep_days=0.0, grace_hours=1.0)
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

    def collect(self, store: ArtifactStore | Watched) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(collection, "open_store", lambda _config: store)
            collect_garbage(self.deployment, delete=True)

    def let_grace_pass(self) -> None:
        """As if everything had been condemned two days ago."""
        for ref, found in read_condemned(self.store).items():
            aged = Condemnation(since=datetime.now(UTC) - timedelta(days=2), removing=found.condemnation.removing)
            name = f"condemned/{ref.kind}/{ref.digest}.json"
            self.store.write_document(name, aged.model_dump(mode="json"), found.revision)


class Run(threading.Thread):
    """A run that needs what the old release made: first it comes by the artifact, later it names it."""

    def __init__(self, past: Past) -> None:
        super().__init__(daemon=True)
        self.past = past
        self.may_name_it = threading.Event()
        self.has_it = threading.Event()
        self.ref: ArtifactRef | None = None

    def run(self) -> None:
        past = self.past
        record = read_stage_record(past.store, past.key)
        reusable = record is not None and not past.store.check(past.ref)
        self.ref = (
            past.ref if reusable else publish_spared(past.store, "checkpoint", past.root / "made/checkpoint" / TEXT)
        )
        self.has_it.set()
        assert self.may_name_it.wait(20)
        release_id = past.resolve(RUNNING)
        result = StageResult(
            release_id=release_id,
            stage="download",
            subject="",
            key=past.key,
            artifacts={"checkpoint": self.ref},
            timings=Timings(started_at=datetime.now(UTC), total_seconds=1.0),
        )
        replace_document(past.store, results_name(release_id, "download", ""), result.model_dump(mode="json"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(condemned_artifacts, "_POLL_SECONDS", 0.005)
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)  # no power is cut here


def operations_of(root: Path, run: str, operations: set[str]) -> int:
    """How many there are in the run that condemns, or in the one that removes."""
    past = Past(root)
    watched = Watched(past.store, lambda _number, _name: None, operations)
    if run == "removes":
        past.collect(past.store)
        past.let_grace_pass()
    past.collect(watched)
    assert past.store.exists(past.ref) == (run == "condemns")
    return len(watched.seen)


def race(root: Path, run: str, begins: int, names: int) -> None:
    """A retention run, and a release that comes by the artifact and names it before the operations given."""
    past = Past(root)
    user = Run(past)

    def before(number: int, _name: str) -> None:
        if number == begins:
            user.start()
            user.has_it.wait(0.3)  # it cannot go on while a removal is under way
        if number == names:
            user.may_name_it.set()
            user.join(0.3)

    if run == "removes":
        past.collect(past.store)
        past.let_grace_pass()
    past.collect(Watched(past.store, before, CALLS))
    user.may_name_it.set()
    user.join(20)
    assert not user.is_alive()
    assert user.ref is not None
    past.let_grace_pass()
    past.collect(past.store)
    past.collect(past.store)
    assert past.store.verify(user.ref) == [], f"lost: begun before {begins}, named before {names}"


@pytest.mark.slow
@pytest.mark.parametrize("run", ["condemns", "removes"])
@pytest.mark.parametrize("later", [0, 1, 10_000])
def test_a_run_that_needs_an_old_artifact_never_loses_it(tmp_path: Path, run: str, later: int):
    for number in range(1, operations_of(tmp_path / "count", run, CALLS) + 1):
        race(tmp_path / str(number), run, number, number + later)


@pytest.mark.slow
@pytest.mark.parametrize("run", ["condemns", "removes"])
def test_a_retention_that_is_killed_before_any_write_is_finished_by_the_next(tmp_path: Path, run: str):
    writes = operations_of(tmp_path / "count", run, WRITES)
    for number in range(1, writes + 1):
        past = Past(tmp_path / str(number))
        if run == "removes":
            past.collect(past.store)
            past.let_grace_pass()
        killed_before(past, number)
        if past.store.exists(past.ref):
            assert past.store.verify(past.ref) == []
        for _ in range(2):
            past.collect(past.store)
            past.let_grace_pass()
        assert not past.store.exists(past.ref)
        assert not past.store.list_documents("condemned")
        assert not past.store.list_documents(f"releases/{past.old}")
        assert past.store.read_document(release_name(past.new)) is not None
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
    done = False

    def before(_number: int, name: str) -> None:
        nonlocal done
        if name == "delete_document" and not done:
            done = True
            past.resolve(OLD)

    calls = Watched(past.store, before, {"delete_document"})
    past.store.write_document("runs/dag/1.json", {"release_id": past.old}, None)  # goes before the release
    past.collect(calls)
    assert past.store.read_document(release_name(past.old)) is not None


def test_a_stage_that_is_computed_meanwhile_keeps_its_lease(tmp_path: Path):
    from llm_pipeline.release.execute import record_name
    from llm_pipeline.store.lease import Lease

    past = Past(tmp_path)
    held: list[Lease] = []

    def before(_number: int, name: str) -> None:
        if name == "delete_document" and not held:
            held.append(Lease(past.store, record_name(past.key)).__enter__())

    past.collect(Watched(past.store, before, {"delete_document"}))
    (lease,) = held
    lease.conclude(lease.conclusion or {})
    record = read_stage_record(past.store, past.key)
    assert record is not None
    assert past.store.verify(past.ref) == []


def test_a_directory_that_is_consumed_while_an_equal_artifact_is_removed_is_published_or_asked_for_again(
    tmp_path: Path,
):
    past = Past(tmp_path)
    ref = past.publish("checkpoint", TEXT)
    made = tmp_path / "made" / "checkpoint" / TEXT
    begun = Condemnation(since=past.now, removing=True)  # of a retention that was killed in the middle
    past.store.write_document(f"condemned/checkpoint/{ref.digest}.json", begun.model_dump(mode="json"), None)
    past.store.remove(ref)
    with pytest.raises(Transient, match="removed by the retention while it was published"):
        publish_spared(past.store, "checkpoint", made, consume=True)
    assert past.publish("checkpoint", TEXT) == publish_spared(past.store, "checkpoint", made, consume=True) == ref
    assert past.store.verify(ref) == []
