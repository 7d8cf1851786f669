"""A disk that is really full: a two-megabyte file system mounted for the test."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base.errors import Transient


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_publishes_nothing_and_the_same_call_works_once_there_is_space(
    small_disk: Path, tmp_path: Path
) -> None:
    store = LocalStore(f"file://{small_disk / 'store'}")
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.bin").write_bytes(os.urandom(1_500_000))
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1_000_000))
    with pytest.raises(Transient, match="free disk space"):
        store.publish("checkpoint", weights)
    assert not list((small_disk / "store").glob("artifacts/*/*"))
    assert not list((small_disk / "store" / "incoming").iterdir())
    ballast.unlink()
    assert store.verify(store.publish("checkpoint", weights)) == []


def test_a_document_that_does_not_fit_leaves_the_old_one_whole(small_disk: Path) -> None:
    store = LocalStore(f"file://{small_disk / 'store'}")
    revision = store.write_document("pointers/m/cpu.json", {"n": 1}, None)
    free = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(bytes(free.f_bavail * free.f_frsize - 8192))
    with pytest.raises(Transient, match="free disk space"):
        store.write_document("pointers/m/cpu.json", {"n": 2, "text": "x" * 100_000}, revision)
    document = store.read_document("pointers/m/cpu.json")
    assert document is not None
    assert document.value == {"n": 1}
