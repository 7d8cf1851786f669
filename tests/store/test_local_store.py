"""What the store on a disk promises beyond every store: others change what is published, and the disk is full."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base.durable import copy_file
from llm_pipeline.base.errors import IntegrityError, Transient
from llm_pipeline.base.file_lock import flocked
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.store import file_blobs
from llm_pipeline.store.file_blobs import FileBlobs

CHANGES: dict[str, Callable[[Path], object]] = {
    "append": lambda weights: (weights / "model.bin").open("ab").write(b"more"),
    "rewrite": lambda weights: (weights / "model.bin").write_bytes(bytes(300_000)),
    "add": lambda weights: (weights / "another").touch(),
    "remove": lambda weights: (weights / "model.bin").unlink(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_directory_that_changes_while_it_is_published_is_not_published(
    store: LocalStore, weights: Path, change: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = threading.Event()

    def copy_and_change(source: Path, destination: Path) -> None:
        copy_file(source, destination)
        if source.name == "model.bin" and not changed.is_set():
            changed.set()
            change(weights)

    monkeypatch.setattr("llm_pipeline.store.file_blobs.copy_file", copy_and_change)
    with pytest.raises(IntegrityError, match="a file was added, removed or changed"):
        store.publish("checkpoint", weights)
    assert list(store.artifacts()) == []
    assert store.leftovers(timedelta(0)) == []


def test_a_file_that_vanishes_before_its_artifact_is_complete_makes_none_and_it_can_be_repeated(
    store: LocalStore, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal = store._seals.seal

    def late(ref: ArtifactRef, statement: Any) -> None:
        (store.root / "artifacts" / ref.kind / ref.digest / "model.bin").unlink()  # by a retention, as a leftover
        seal(ref, statement)

    with monkeypatch.context() as patched:
        patched.setattr(store._seals, "seal", late)
        with pytest.raises(Transient, match="vanished while it was published"):
            store.publish("checkpoint", weights)
    assert list(store.artifacts()) == []
    assert store.verify(store.publish("checkpoint", weights)) == []


def test_files_to_be_consumed_become_the_stores_own_and_readable_as_copies_are(
    store: LocalStore, weights: Path, tmp_path: Path
) -> None:
    (weights / "model.bin").chmod(0o600)
    (tmp_path / "another-name").hardlink_to(weights / "sub" / "config.json")
    ref = store.publish("checkpoint", weights, consume=True)
    assert not weights.exists()
    (tmp_path / "another-name").write_bytes(b"changed by its owner")
    assert store.verify(ref) == []
    assert len({path.stat().st_mode for path in store.fetch(ref).rglob("*") if path.is_file()}) == 1


def test_a_directory_to_be_consumed_on_another_disk_is_copied(store: LocalStore, weights: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        if Path(elsewhere).stat().st_dev == weights.stat().st_dev:
            pytest.skip("there is one disk only")
        there = Path(shutil.copytree(weights, f"{elsewhere}/weights"))
        assert store.verify(store.publish("checkpoint", there, consume=True)) == []


def test_an_error_leaves_a_directory_to_be_consumed_where_it_was(
    store: LocalStore, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_directory: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("llm_pipeline.store.file_blobs.sync_file_system", full)
        with pytest.raises(Transient, match="free disk space"):
            store.publish("checkpoint", weights, consume=True)
    assert list(store.artifacts()) == []
    assert store.verify(store.publish("checkpoint", weights, consume=True)) == []
    assert not weights.exists()


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir], ids=["a named pipe", "a directory"])
def test_what_is_no_file_in_place_of_a_document_is_an_error_and_holds_nobody(
    store: LocalStore, make: Callable[[Path], None]
) -> None:
    (store.root / "pointers/org").mkdir(parents=True)
    make(store.root / "pointers/org/model.json")
    with pytest.raises(IntegrityError, match=r"not a regular file.*model\.json|model\.json.*not a regular file"):
        store.read_document("pointers/org/model.json")
    with pytest.raises(IntegrityError, match="not a regular file"):
        store.read_file("pointers/org/model.json")


def test_a_full_disk_publishes_nothing_and_the_same_call_works_once_there_is_space(
    small_disk: Callable[[str], Path], weights: Path
) -> None:
    disk = small_disk("size=2m")
    store = LocalStore(f"file://{disk / 'store'}")
    (weights / "model.bin").write_bytes(os.urandom(1_500_000))
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(1_000_000))
    with pytest.raises(Transient, match="free disk space"):
        store.publish("checkpoint", weights)
    assert not list((disk / "store").glob("artifacts/*/*"))
    assert not list((disk / "store" / "incoming").iterdir())
    ballast.unlink()
    assert store.verify(store.publish("checkpoint", weights)) == []


def test_a_store_does_not_wait_for_ever_for_who_holds_the_lock_of_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = FileBlobs(tmp_path)
    blobs.put("places/cpu.json", b"1")
    (lock,) = (tmp_path / "locks").iterdir()
    monkeypatch.setattr(file_blobs, "_LOCK_SECONDS", 0.1)
    with flocked(lock), pytest.raises(Transient, match=r"another process holds the lock of places/cpu\.json") as told:
        blobs.put("places/cpu.json", b"2")
    assert "kill -CONT" in told.value.hint
    blobs.put("places/cpu.json", b"2")
