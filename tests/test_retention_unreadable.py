"""Retention of a store that cannot be read, or not wholly: nothing goes."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from store_history import MODEL, TARGET, History
from unprivileged import directory_for_everyone, mode, without_root

from llm_pipeline.base import detached
from llm_pipeline.base.errors import IntegrityError, PipelineError, Transient
from llm_pipeline.cli import main
from llm_pipeline.retention.collection import collect_garbage
from llm_pipeline.retention.plan import TooMuchToRemove
from llm_pipeline.store.lease import Lease
from llm_pipeline.store.pending_deletion import RETENTION_LEASE
from llm_pipeline.store.pointers import pointers_name

RULES = {"keep_releases": 1, "keep_days": 0.0, "grace_hours": 1.0}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)  # no power is cut here


@pytest.fixture(autouse=True)
def no_run_of_before(request: pytest.FixtureRequest) -> None:
    """A run that could not even give its lease back has ended in life; here its process goes on."""
    if "history" in request.fixturenames:
        request.getfixturevalue("history").store.delete_document(RETENTION_LEASE)


@pytest.fixture(scope="module")
def history() -> Iterator[History]:
    """Two releases in production one after the other, a newer one, and one that waits for its removal."""
    with directory_for_everyone() as root:
        history = History(root, **RULES)
        history.release(0)
        for number in (1, 2):
            history.settle(history.release(number))
        history.claim(history.release(3), silent_hours=72)
        with Lease(history.store, "leases/canary-cpu.json"):
            pass
        collect_garbage(history.deployment, delete=True, now=_in_days(history, 1))
        (root / "work" / "jobs" / "tiny" / "download" / "1").mkdir(parents=True)
        assert history.store.list_documents("condemned")
        yield history


def _in_days(history: History, days: float) -> datetime:
    history.pass_days(days)
    return history.now


def collect(history: History) -> None:
    collect_garbage(history.deployment, delete=True, now=datetime.now(UTC).replace(year=2100))


def pointers_file(history: History) -> Path:
    return history.root / "store" / pointers_name(MODEL, TARGET)


DIRECTORIES = [
    "store/pointers",
    "store/pointers/demo--tiny",
    "store/releases",
    "store/releases/tiny-00000002-00000064",
    "store/releases/tiny-00000002-00000064/results",
    "store/claims",
    "store/leases",
    "store/stages",
    "store/condemned",
    "store/condemned/checkpoint",
    "store/artifacts",
    "store/artifacts/checkpoint",
    "store/incoming",
    "work/jobs",
    "work/jobs/tiny/download",
]


@pytest.mark.parametrize("bits", [0o000, 0o300], ids=["closed", "not listed"])
@pytest.mark.parametrize("directory", DIRECTORIES)
def test_where_a_directory_cannot_be_read_nothing_goes_and_it_is_named(history: History, directory: str, bits: int):
    before = history.names()
    with without_root(history.root), mode(history.root / directory, bits), pytest.raises(PipelineError) as refused:
        collect(history)
    assert directory in str(refused.value)
    assert history.names() - {RETENTION_LEASE} == before - {RETENTION_LEASE}


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("directory", ["store/pointers", "store/releases", "store/artifacts/checkpoint", "work/jobs"])
def test_where_the_disk_does_not_answer_nothing_goes(
    history: History, directory: str, number: int, monkeypatch: pytest.MonkeyPatch
):
    scandir, failing = os.scandir, history.root / directory

    def faulty(path):
        if Path(path) == failing:
            raise OSError(number, os.strerror(number), str(path))
        return scandir(path)

    before = history.names()
    monkeypatch.setattr(os, "scandir", faulty)
    with pytest.raises(Transient, match=os.strerror(number)):
        collect(history)
    monkeypatch.setattr(os, "scandir", scandir)
    assert history.names() - {RETENTION_LEASE} == before - {RETENTION_LEASE}


def test_a_directory_that_is_removed_while_it_is_listed_is_no_error(history: History, monkeypatch: pytest.MonkeyPatch):
    scandir = os.scandir
    going = history.root / "store" / "releases" / "going-00000009-00000009"
    going.mkdir()

    def late(path):
        if Path(path) == going:
            going.rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", late)
    assert collect_garbage(history.deployment, delete=False).kept
    assert not going.exists()


@pytest.mark.parametrize("name", ["store/pointers", "store/releases", "store/artifacts", "store/artifacts/checkpoint"])
def test_a_link_to_a_file_system_that_is_not_mounted_is_no_empty_directory(history: History, name: str):
    place = history.root / name
    aside = place.rename(place.with_name("aside"))
    place.symlink_to("/not/mounted")
    try:
        with pytest.raises(Transient, match="cannot list"):
            collect(history)
    finally:
        place.unlink()
        aside.rename(place)


@pytest.mark.parametrize(
    "document",
    [
        pointers_name(MODEL, TARGET),
        "releases/tiny-00000002-00000064/release.json",
        "releases/tiny-00000002-00000064/results/package.cpu.json",
        "claims/demo--tiny.json",
        "leases/canary-cpu.json",
        "a condemnation",
        "a stage",
    ],
)
@pytest.mark.parametrize("content", [b"", b'{"revision": "1", "val', b'{"revision": "1", "value": []}', None])
def test_where_a_root_is_damaged_nothing_goes_and_the_document_is_named(
    history: History, document: str, content: bytes | None
):
    kind = {"a condemnation": "condemned", "a stage": "stages"}.get(document)
    name = history.store.list_documents(kind)[0] if kind else document
    file = history.root / "store" / name
    whole, before = file.read_bytes(), history.names()
    try:
        if content is None:
            with (
                without_root(history.root),
                mode(file, 0o000),
                pytest.raises(Transient, match="Permission denied") as e,
            ):
                collect(history)
        else:
            file.write_bytes(content)
            with pytest.raises(IntegrityError) as e:
                collect(history)
    finally:
        file.write_bytes(whole)
    assert name in str(e.value)
    assert e.value.hint
    assert history.names() - {RETENTION_LEASE} == before - {RETENTION_LEASE}


@pytest.mark.parametrize(
    "document", [pointers_name(MODEL, TARGET), "claims/demo--tiny.json", "leases/canary-cpu.json", "a stage"]
)
def test_where_a_root_has_another_form_nothing_goes(history: History, document: str):
    name = history.store.list_documents("stages")[0] if document == "a stage" else document
    file = history.root / "store" / name
    whole = file.read_bytes()
    file.write_bytes(b'{"revision": "1", "value": {"form": "unknown"}}')
    try:
        with pytest.raises(IntegrityError, match="cannot be understood") as refused:
            collect(history)
    finally:
        file.write_bytes(whole)
    assert name in str(refused.value)


class TestTheLimit:
    @pytest.fixture
    def grown(self, tmp_path: Path) -> History:
        """Seven releases that are kept."""
        history = History(tmp_path, keep_releases=9, keep_days=9.0, grace_hours=1.0, max_deleted_share=0.5)
        for number in range(7):
            history.release(number)
        history.pass_days(1)
        return history

    def forget_the_releases(self, history: History) -> set[str]:
        """As if they had never been there, for whatever reason no error tells of; returns what is left."""
        for kind in ("releases", "stages"):
            for name in history.store.list_documents(kind):
                history.store.delete_document(name)
        return history.names()

    def test_a_run_that_finds_most_of_the_store_useless_removes_nothing(self, grown: History):
        left = self.forget_the_releases(grown)
        with pytest.raises(TooMuchToRemove, match=r"15 of the store's 15 artifacts .* 50%") as refused:
            collect_garbage(grown.deployment, delete=True, now=grown.now)
        assert "gc --delete --force" in refused.value.hint
        assert grown.names() - {RETENTION_LEASE} == left

    def test_one_large_artifact_is_much_too(self, grown: History):
        (grown.root / "made" / "checkpoint" / "large").mkdir()
        (grown.root / "made" / "checkpoint" / "large" / "content").write_bytes(bytes(100_000))
        grown.store.publish("checkpoint", grown.root / "made" / "checkpoint" / "large")
        with pytest.raises(TooMuchToRemove, match="1 of the store's 16 artifacts"):
            collect_garbage(grown.deployment, delete=True, now=grown.now)

    def test_a_dry_run_says_that_it_would_be_refused(self, grown: History):
        self.forget_the_releases(grown)
        report = collect_garbage(grown.deployment, delete=False, now=grown.now)
        assert "--delete would remove nothing: nobody needs 15 of" in "\n".join(report.lines())

    def test_force_removes_it(self, grown: History):
        self.forget_the_releases(grown)
        for _ in range(2):
            grown.pass_days(1)
            collect_garbage(grown.deployment, delete=True, force=True, now=grown.now)
        assert not list(grown.store.artifacts())

    def test_less_than_the_share_goes_without_force(self, tmp_path: Path):
        history = History(tmp_path, **RULES, max_deleted_share=0.5)
        old, new = history.release(1), history.release(2)
        for _ in range(2):
            history.pass_days(1)
            collect_garbage(history.deployment, delete=True, now=history.now)
        assert not history.artifacts_of(old)
        assert history.artifacts_of(new)

    def test_the_command_takes_force(self, grown: History, capsys: pytest.CaptureFixture[str]):
        file = grown.root / "here.yaml"
        file.write_text(
            f"{{store: '{grown.store.uri}', work_root: {grown.root}/work, state_root: s, environments: {{}}, "
            "triton_home: t, retention: {max_deleted_share: 0.01, grace_hours: 1, keep_days: 0, keep_releases: 1}}\n"
        )
        old = datetime.now(UTC).timestamp() - 86_400
        for marker in grown.root.glob("store/artifacts/*/*/_COMPLETE.json"):
            os.utime(marker, (old, old))
        self.forget_the_releases(grown)
        command = ("gc", "--deployment", str(file), "--delete")
        assert main(command) == 5
        assert "retention.max_deleted_share" in capsys.readouterr().err
        assert main((*command, "--force")) == 0


def test_a_work_directory_whose_job_has_no_readable_record_stays_while_its_process_runs(tmp_path: Path):
    history = History(tmp_path, **RULES)
    old = history.release(1)
    history.release(2)
    attempt = tmp_path / "work" / "jobs" / old / "download" / "1"
    record = attempt / "process.json"
    code = "import time; time.sleep(60)"
    command = [sys.executable, "-c", code, "--result", str(attempt / "result.json")]
    process = detached.start("job", command, record, log=attempt / "log.jsonl")
    record.write_bytes(b"")
    history.pass_days(3)
    try:
        collect_garbage(history.deployment, delete=True, now=history.now)
        assert attempt.exists()
    finally:
        detached.stop(process)
    collect_garbage(history.deployment, delete=True, now=history.now)
    assert not attempt.exists()


def test_a_leftover_that_cannot_be_looked_into_is_not_taken_for_unused(history: History):
    leftover = history.root / "store" / "incoming" / "somebody"
    leftover.mkdir(parents=True, exist_ok=True)
    (leftover / "in-use").write_bytes(b"")
    try:
        with without_root(history.root), mode(leftover, 0o000), pytest.raises(Transient, match="Permission denied"):
            collect(history)
        assert (leftover / "in-use").exists()
    finally:
        (leftover / "in-use").unlink()
        leftover.rmdir()
