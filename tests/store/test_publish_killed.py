"""kill -9 at the write points of the local store: at some spread over the work, or, `thorough`, at each in turn.

A child process does the work and kills itself at its n-th operation that changes a disk: a file opened for writing, a
write (half of which is done), a sync, a rename, a directory made, a file or directory removed, a time set. CPython
audits all of these except writes and syncs, which are wrapped; a file that is written past `os.write` fails the test,
as its writes would not be counted.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.store import Signing, store_settings

_CHANGES = {
    "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.link", "os.symlink", "os.truncate", "os.utime", "os.chmod",
    "ctypes.dlsym",  # the store calls syncfs through ctypes
}  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_PAST_OS_WRITE = 97


class _Killer:
    """Kills this process at its n-th write point."""

    def __init__(self, number: int, root: Path) -> None:
        self._number, self._root = number, str(root)
        self._counted = itertools.count(1)
        self._write, self._fsync = os.write, os.fsync

    def arm(self) -> None:
        os.write, os.fsync = self.torn_write, self.counted_fsync
        sys.addaudithook(self.audit)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CHANGES or (event == "open" and self._opens_for_writing(*arguments)):
            self._die_if_reached()

    def torn_write(self, descriptor: int, data: Any) -> int:
        self._die_if_reached(lambda: self._write(descriptor, memoryview(data)[: len(data) // 2]))
        return self._write(descriptor, data)

    def counted_fsync(self, descriptor: int) -> None:
        self._die_if_reached()
        self._fsync(descriptor)

    def _opens_for_writing(self, path: object, mode: str | None, flags: int) -> bool:
        writes = bool(flags & _WRITING) and str(path).startswith(self._root)
        if writes and mode is not None:  # only os.open has no mode
            os._exit(_PAST_OS_WRITE)
        return writes

    def _die_if_reached(self, last: Callable[[], object] = int) -> None:
        if next(self._counted) == self._number:
            last()
            os.kill(os.getpid(), signal.SIGKILL)


def _killed(number: int, root: Path, work: Callable[[], object]) -> bool:
    """Do the work in a child that is killed at its n-th write point; False when it ended before that."""
    child = os.fork()
    if child == 0:
        try:
            _Killer(number, root).arm()
            work()
        finally:
            os._exit(1 if sys.exc_info()[0] else 0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the work failed" if os.WEXITSTATUS(status) == 1 else "written past os.write"
    return False


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.thorough), 7], ids=["each", "some"])
def step(request: pytest.FixtureRequest) -> int:
    """How many write points lie between two kills."""
    return int(request.param)


def _write_points(root: Path, begin: Callable[[], None], work: Callable[[], object], step: int) -> Iterator[int]:
    """Kill the work at its write points, each time from the same beginning."""
    for number in itertools.count(1, step):
        begin()
        if not _killed(number, root, work):
            assert number > 3, "hardly anything was enumerated"
            return
        yield number


@dataclass
class Disk:
    """A store in memory: what it keeps survives a killed process, and syncs cost nothing."""

    root: Path
    signing: Signing | None = None

    @property
    def store(self) -> LocalStore:
        return LocalStore(store_settings(uri=f"file://{self.root}/store", signing=self.signing))

    @property
    def files(self) -> set[str]:
        """All files in the store, without the locks that are free and stay."""
        found = {path.relative_to(self.store.root).as_posix() for path in self.store.root.rglob("*") if path.is_file()}
        return {path for path in found if not path.startswith("locks/")}

    def clear(self) -> None:
        subprocess.run(["rm", "-rf", self.store.root], check=True)

    def remove_leftovers(self) -> None:
        for leftover in self.store.leftovers(timedelta(0)):
            self.store.remove_leftover(leftover)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    memory = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as root:
        yield Disk(Path(root))


@pytest.fixture
def weights(disk: Disk) -> Path:
    directory = disk.root / "weights"
    (directory / "sub").mkdir(parents=True)
    (directory / "model.bin").write_bytes(os.urandom(300_000))
    (directory / "sub" / "config.json").write_text("{}")
    (directory / "empty").write_text("")
    return directory


def _whole_or_absent(disk: Disk, ref: ArtifactRef) -> None:
    listed = [stored.ref for stored in disk.store.artifacts()]
    if disk.store.exists(ref):
        assert disk.store.verify(ref) == []
        assert listed == [ref]
    else:
        assert listed == []


def _made_whole(disk: Disk, weights: Path, ref: ArtifactRef) -> None:
    """The same call completes, and all that lies about besides the artifact are leftovers."""
    assert disk.store.publish("checkpoint", weights) == ref
    assert disk.store.verify(ref) == []
    disk.remove_leftovers()
    assert all(path.startswith(f"artifacts/checkpoint/{ref.digest}/") for path in disk.files)


@pytest.mark.parametrize("before", ["nothing", "damaged", "unsigned"])
def test_a_publication_killed_anywhere_leaves_a_whole_artifact_or_none_and_can_be_repeated(
    disk: Disk, weights: Path, before: str, signing: Signing, step: int
) -> None:
    publisher = Disk(disk.root, signing) if before == "unsigned" else disk
    ref = publisher.store.publish("checkpoint", weights)
    file = disk.store.root / "artifacts" / ref.kind / ref.digest / "model.bin"

    def begin() -> None:
        disk.clear()
        if before != "nothing":
            disk.store.publish("checkpoint", weights)
        if before == "damaged":
            file.write_bytes(b"rubbish")

    for _ in _write_points(disk.root, begin, lambda: publisher.store.publish("checkpoint", weights), step):
        if not file.exists() or file.read_bytes() != b"rubbish":
            _whole_or_absent(disk, ref)
        _made_whole(publisher, weights, ref)


def test_a_consuming_publication_killed_anywhere_leaves_the_directory_or_a_whole_artifact(
    disk: Disk, weights: Path, step: int
) -> None:
    kept = disk.root / "kept"
    shutil.copytree(weights, kept)
    ref = disk.store.publish("checkpoint", weights)

    def begin() -> None:
        disk.clear()
        shutil.rmtree(weights, ignore_errors=True)
        shutil.copytree(kept, weights)

    for _ in _write_points(disk.root, begin, lambda: disk.store.publish("checkpoint", weights, consume=True), step):
        _whole_or_absent(disk, ref)
        assert weights.exists() or disk.store.exists(ref)
        if not disk.store.exists(ref):
            assert disk.store.publish("checkpoint", weights, consume=True) == ref
        assert disk.store.verify(ref) == []
        disk.remove_leftovers()
        assert all(path.startswith(f"artifacts/checkpoint/{ref.digest}/") for path in disk.files)


def test_a_removal_killed_anywhere_leaves_a_whole_artifact_or_none(disk: Disk, weights: Path, step: int) -> None:
    ref = disk.store.publish("checkpoint", weights)
    file = disk.store.root / "artifacts" / ref.kind / ref.digest / "model.bin"

    def begin() -> None:
        disk.clear()
        disk.store.publish("checkpoint", weights)
        file.rename(disk.root / "moved")  # memory lists what came last first: let that not be the marker
        (disk.root / "moved").rename(file)

    for _ in _write_points(disk.root, begin, lambda: disk.store.remove(ref), step):
        _whole_or_absent(disk, ref)
        disk.store.remove(ref)
        disk.remove_leftovers()
        assert disk.files == set()


@pytest.mark.parametrize("there_before", [False, True])
def test_a_document_whose_writer_is_killed_anywhere_is_the_old_or_the_new_one(
    disk: Disk, there_before: bool, step: int
) -> None:
    name, old, new = "pointers/model/cpu.json", {"n": 1}, {"n": 2, "text": "x" * 1000}
    expect: list[str | None] = [None]

    def begin() -> None:
        disk.clear()
        expect[0] = disk.store.write_document(name, old, None) if there_before else None

    for _ in _write_points(disk.root, begin, lambda: disk.store.write_document(name, new, expect[0]), step):
        document = disk.store.read_document(name)
        assert (document.value if document else None) in ((old if there_before else None), new)
        disk.store.write_document(name, {"n": 3}, document.revision if document else None)
        assert disk.store.list_documents("pointers") == [name]
        disk.remove_leftovers()
        assert disk.files == {name}
