"""Locks on files: who runs is waited for, and who is stopped keeps nobody waiting for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llm_pipeline.base.errors import Transient
from llm_pipeline.base.file_lock import flocked, flocked_within
from llm_pipeline.store import file_blobs
from llm_pipeline.store.file_blobs import FileBlobs

HOLDER = """
import os, signal, sys
from pathlib import Path
from llm_pipeline.base.file_lock import flocked
with flocked(Path(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGSTOP)
"""

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def stopped() -> Iterator[Start]:
    """Starts a process that stops itself while it holds a lock."""
    started: list[subprocess.Popen[bytes]] = []

    def start(program: str, *arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", program, *arguments])
        started.append(process)
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_bounded_wait_ends_with_the_given_error_whatever_the_holder_does(tmp_path: Path, stopped: Start) -> None:
    holder = stopped(HOLDER, str(tmp_path / "lock"))
    busy = Transient("somebody else works here", where=str(tmp_path))
    for seconds in (0.0, 0.3):
        with pytest.raises(Transient) as told, flocked_within(tmp_path / "lock", seconds, busy):
            pass
        assert told.value is busy
    holder.kill()
    holder.wait()
    with flocked_within(tmp_path / "lock", 0.0, busy):
        pass  # the kernel frees the lock of a dead process


def test_who_goes_on_is_waited_for_and_a_store_does_not_wait_for_ever(
    tmp_path: Path, stopped: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = FileBlobs(tmp_path)
    blobs.put("places/cpu.json", b"1")
    (lock,) = (tmp_path / "locks").iterdir()
    holder = stopped(HOLDER, str(lock))
    monkeypatch.setattr(file_blobs, "_LOCK_SECONDS", 0.1)
    with pytest.raises(Transient, match=r"another process holds the lock of places/cpu\.json") as told:
        blobs.put("places/cpu.json", b"2")
    assert "kill -CONT" in told.value.hint
    os.kill(holder.pid, signal.SIGCONT)
    with flocked(lock):
        assert holder.wait(timeout=30) == 0
    blobs.put("places/cpu.json", b"2")
