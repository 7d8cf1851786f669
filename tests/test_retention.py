"""What a retention run keeps and removes, in real stores; beside releases that run; and that it does nothing unsure."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from place_here import serve
from store_history import MODEL, TARGET, History
from unprivileged import directory_for_everyone, mode, without_root

from llm_pipeline import retention
from llm_pipeline.base.errors import IntegrityError, PipelineError, Transient
from llm_pipeline.hub.kept_data_sets import kept_data_sets, remove_kept, using
from llm_pipeline.release.execute import read_stage_record, stage_record_name
from llm_pipeline.release.record import release_record_name
from llm_pipeline.retention import RetentionReport, collect_garbage
from llm_pipeline.store import ArtifactStore
from llm_pipeline.store.lease import Lease
from llm_pipeline.store.place_state import place_name, read_place

STRICT = {"keep_releases": 1, "keep_days": 1.0}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)  # no power is cut here


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path, **STRICT)


def collect(history: History, *, delete: bool = True, days: float = 0.0) -> RetentionReport:
    history.pass_days(days)
    return collect_garbage(history.deployment, delete=delete, now=history.now)


def kept(history: History) -> set[str]:
    return {name.split("/")[1] for name in history.store.list_documents("releases") if name.endswith("/release.json")}


def is_whole(history: History, release_id: str) -> bool:
    refs = history.artifacts_of(release_id)
    return bool(refs) and not any(history.store.verify(ref) for ref in refs)


def reasons(report: RetentionReport, release_id: str) -> str:
    return "; ".join(why for one in report.kept if one.release_id == release_id for why in one.why)


def test_a_dry_run_changes_nothing_and_says_what_would_go_and_why(history: History):
    old, new = history.release(1), history.release(2)
    history.pass_days(2)
    before = history.names()
    report = collect(history, delete=False)
    assert history.names() == before
    text = "\n".join(report.lines())
    assert re.search(rf"^release +{old} ", text, re.MULTILINE)
    assert "not among the newest 1 of tiny, not in use" in text
    assert f"{new}  one of the newest 1 of tiny" in text
    assert report.bytes_removed == sum(history.store.manifest(ref).size for ref in history.artifacts_of(old))
    assert "nothing was changed: --delete does it" in text


def test_an_old_release_goes_with_all_that_only_it_used(history: History):
    old, new = history.release(1), history.release(2)
    gone, shared = history.artifacts_of(old), history.publish("dataset", "prompts")
    collect(history, days=2)
    assert kept(history) == {new}
    assert not any(history.store.exists(ref) for ref in gone)
    assert history.store.exists(shared)
    assert is_whole(history, new)
    assert not history.store.list_documents(f"releases/{old}")
    with pytest.raises(FileNotFoundError):
        history.store.read_file(f"releases/{old}/report.html")


def test_a_stage_result_that_a_kept_release_uses_stays_whoever_computed_it(history: History):
    old = history.resolve(1)
    first = history.stage(old, "download", config={"same": 1}, content="same", produces=("checkpoint",))
    new = history.resolve(2)
    history.stage(new, "download", config={"same": 1}, content="same", produces=("checkpoint",))
    collect(history, days=2)
    assert kept(history) == {new}
    assert read_stage_record(history.store, first.key) is not None
    assert is_whole(history, new)


@pytest.mark.parametrize("way", ["production", "previous", "canary", "claim"])
def test_a_release_in_use_stays_however_old_it_is(history: History, way: str, tmp_path: Path):
    used = history.release(1)
    if way in ("production", "previous"):
        history.settle(used)
    if way == "canary":
        history.canary(used)
    newer = history.release(2)
    if way == "previous":
        history.settle(newer)
    history.pass_days(30)
    history.release(3)
    if way == "claim":
        history.claim(used)
    report = collect(history, days=1.5)
    collect(history)
    assert used in kept(history)
    assert is_whole(history, used)
    assert reasons(report, used)


def test_the_newest_of_each_config_and_the_young_stay(tmp_path: Path):
    history = History(tmp_path, keep_releases=2, keep_days=10.0)
    ages = {}
    for number in range(5):
        ages[history.release(number)] = 5 - number
        ages[history.release(number, "other")] = 5 - number
        history.pass_days(4)
    collect(history)
    assert kept(history) == {release for release, age in ages.items() if age <= 2}


def test_nothing_young_is_removed(history: History):
    history.release(1)
    lonely = history.publish("checkpoint", "of a stage that has not written its result yet")
    history.release(2)
    report = collect_garbage(history.deployment, delete=True)
    assert history.store.exists(lonely)
    assert not [one for one in report.going if one.what == "artifact"]


def test_what_is_published_again_or_reused_is_young_again(history: History):
    ref, other = history.publish("checkpoint", "a"), history.publish("checkpoint", "b")
    long_ago = (datetime.now(UTC) - timedelta(days=3)).timestamp()
    for one in (ref, other):
        os.utime(history.root / f"store/artifacts/{one.kind}/{one.digest}/_COMPLETE.json", (long_ago, long_ago))
    assert {one.name for one in collect(history, delete=False).going} == {str(ref), str(other)}
    assert history.publish("checkpoint", "a") == ref
    assert history.store.renew(other)
    assert not collect(history).going
    collect(history, days=2)
    assert list(history.store.artifacts()) == []
    assert not history.store.renew(ref)


@pytest.mark.parametrize("document", ["places/cpu.json", "claims/demo/tiny.json"])
def test_while_it_is_not_known_what_is_in_use_nothing_goes(history: History, document: str):
    history.release(1)
    history.release(2)
    history.store.write_document(document, {"form": "unknown"}, None)
    before = history.names()
    with pytest.raises(IntegrityError):
        collect(history, days=40)
    assert history.names() == before


def test_work_directories_and_copies_that_nothing_needs_go_and_others_stay(history: History, tmp_path: Path):
    old, new = history.release(1), history.release(2)
    used, *_ = history.artifacts_of(new)
    gone = [f"jobs/{old}", f"download/{'a' * 24}", f"cache/artifacts/{used.kind}/{'a' * 64}"]
    stay = [f"jobs/{new}", "jobs/tiny", f"download/{'b' * 24}", f"cache/artifacts/{used.kind}/{used.digest}", "answers"]
    for name in (*gone, *stay):
        (tmp_path / "work" / name / "1").mkdir(parents=True)
    with Lease(history.store, stage_record_name("b" * 64)):
        for days in (0.5, 1.0):
            assert all((tmp_path / "work" / name).exists() for name in (*gone, *stay))
            collect(history, days=days)
    assert [name for name in (*gone, *stay) if (tmp_path / "work" / name).exists()] == stay


def test_fetched_data_sets_go_once_nobody_has_asked_for_them_in_as_long_as_releases_are_kept(
    history: History, tmp_path: Path
):
    root, days_ago = tmp_path / "work" / "datasets", (datetime.now(UTC) - timedelta(days=2)).timestamp()
    old, oldest, new = root / "org/old" / ("a" * 40), root / "squad" / ("b" * 40), root / "org/new" / ("c" * 40)
    for path in (old, oldest, new):
        with using(path):
            (path / "test.parquet").write_bytes(b"12345")
    assert "data set" not in {one.what for one in collect(history).going}
    os.utime(old.with_name(f"{old.name}.lock"), (days_ago, days_ago))
    os.utime(oldest.with_name(f"{oldest.name}.lock"), (days_ago, days_ago))
    for delete in (False, True):
        report = collect(history, delete=delete)
        going = {(one.name, one.bytes) for one in report.going if one.what == "data set"}
        assert going == {(str(old), 5), (str(oldest), 5)}
        assert old.exists() is oldest.exists() is not delete
    assert (new / "test.parquet").exists()


def test_a_data_set_that_is_asked_for_while_it_was_to_go_stays(tmp_path: Path):
    path = tmp_path / "org" / "name" / ("a" * 40)
    with using(path):
        (path / "test.parquet").touch()
    (kept,) = kept_data_sets(tmp_path)
    with using(path):
        pass
    assert not remove_kept(kept)
    (kept,) = kept_data_sets(tmp_path)
    assert remove_kept(kept)
    assert list(kept_data_sets(tmp_path)) == []
    with using(path):
        assert list(path.iterdir()) == []


def test_leftovers_and_runs_of_removed_releases_go(history: History, tmp_path: Path):
    old, new = history.release(1), history.release(2)
    for number, release_id in enumerate((old, new)):
        history.store.write_document(f"runs/dag/{number}.json", {"release_id": release_id}, None)
    leftover = tmp_path / "store" / "incoming" / "killed"
    leftover.mkdir(parents=True)
    (leftover / "part").write_bytes(b"12345")
    days_ago = (datetime.now(UTC) - timedelta(days=2)).timestamp()
    for path in (leftover / "part", leftover):
        os.utime(path, (days_ago, days_ago))
    report = collect(history, days=2)
    assert not leftover.exists()
    assert history.store.list_documents("runs") == ["runs/dag/1.json"]
    assert [one.bytes for one in report.going if one.what == "leftover"] == [5]


def test_pointers_keep_their_repository_also_without_its_release(history: History):
    release_id = history.release(1)
    repository = history.repository(release_id)
    history.settle(release_id)
    pointers = read_place(history.store, TARGET)
    assert pointers.production is not None
    moved = pointers.production.model_copy(update={"release_id": "another-00000001-00000001"})
    serve(history.store, MODEL, TARGET, moved)
    history.release(2)
    collect(history, days=2)
    assert release_id not in kept(history)
    assert history.store.verify(repository) == []


# --- while releases run, and killed before each of its writes


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

    def collect(self, store: ArtifactStore | Watched) -> RetentionReport:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(retention, "open_store", lambda _config: store)
            return collect_garbage(self.deployment, delete=True)


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


# --- of a store that cannot be read, or not wholly


@pytest.fixture(scope="module")
def busy() -> Iterator[History]:
    """Two releases in production one after the other, a newer one, and one that is to go."""
    with directory_for_everyone() as root:
        busy = History(root, **STRICT)
        busy.release(0)
        for number in (1, 2):
            busy.settle(busy.release(number))
        busy.claim(busy.release(3), silent_hours=72)
        (root / "work" / "jobs" / "tiny-00000009-00000064" / "download" / "1").mkdir(parents=True)
        yield busy


def collect_late(history: History) -> None:
    collect_garbage(history.deployment, delete=True, now=datetime.now(UTC).replace(year=2100))


DIRECTORIES = [
    "store/places",
    "store/releases",
    "store/releases/tiny-00000002-00000064",
    "store/releases/tiny-00000002-00000064/results",
    "store/claims",
    "store/stages",
    "store/artifacts",
    "store/artifacts/checkpoint",
    "store/incoming",
    "work/jobs",
    "work/jobs/tiny-00000009-00000064/download",
]


@pytest.mark.parametrize("bits", [0o000, 0o300], ids=["closed", "not listed"])
@pytest.mark.parametrize("directory", DIRECTORIES)
def test_where_a_directory_cannot_be_read_nothing_goes_and_it_is_named(busy: History, directory: str, bits: int):
    before = busy.names()
    with without_root(busy.root), mode(busy.root / directory, bits), pytest.raises(PipelineError) as refused:
        collect_late(busy)
    assert directory in str(refused.value)
    assert busy.names() == before


@pytest.mark.parametrize("name", ["store/places", "store/releases", "store/artifacts", "store/artifacts/checkpoint"])
def test_a_link_to_a_file_system_that_is_not_mounted_is_no_empty_directory(busy: History, name: str):
    place = busy.root / name
    aside = place.rename(place.with_name("aside"))
    place.symlink_to("/not/mounted")
    try:
        with pytest.raises(Transient, match="cannot list"):
            collect_late(busy)
    finally:
        place.unlink()
        aside.rename(place)


@pytest.mark.parametrize(
    "document",
    [
        place_name(TARGET),
        "releases/tiny-00000002-00000064/release.json",
        "releases/tiny-00000002-00000064/results/package.cpu.json",
        "claims/demo/tiny.json",
        "a stage",
    ],
)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"revision": "1", "val',
        b'{"revision": "1", "value": []}',
        b'{"revision": "1", "value": {"form": "unknown"}}',
        None,
    ],
)
def test_where_a_root_is_damaged_nothing_goes_and_the_document_is_named(
    busy: History, document: str, content: bytes | None
):
    name = busy.store.list_documents("stages")[0] if document == "a stage" else document
    file = busy.root / "store" / name
    whole, before = file.read_bytes(), busy.names()
    try:
        if content is None:
            with without_root(busy.root), mode(file, 0o000), pytest.raises(Transient, match="Permission denied") as e:
                collect_late(busy)
        else:
            file.write_bytes(content)
            with pytest.raises(IntegrityError) as e:
                collect_late(busy)
    finally:
        file.write_bytes(whole)
    assert name in str(e.value)
    assert e.value.hint
    assert busy.names() == before
