"""Locks on files: who runs is waited for, who is stopped is named, and a rollback does not wait for that one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base import file_lock
from llm_pipeline.base.errors import Transient
from llm_pipeline.base.file_lock import HolderStopped, flocked, flocked_within
from llm_pipeline.canary.record import lease_name, take_over
from llm_pipeline.store.artifact_store import Conflict
from llm_pipeline.store.lease import Lease, lease_of

HOLDER = """
import os, signal, sys
from pathlib import Path
from llm_pipeline.base.file_lock import flocked
with flocked(Path(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGSTOP)
"""
OWNER = """
import os, signal, sys
from llm_pipeline.canary.record import lease_name
from llm_pipeline.store.lease import Lease
from llm_pipeline.adapters.local.store import LocalStore
store = LocalStore(sys.argv[1])
with Lease(store, lease_name("cpu"), seconds=60.0), store._blobs._locked(lease_name("cpu")):  # as in a renewal
    os.kill(os.getpid(), signal.SIGSTOP)
"""

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lock, "_STOPPED_SECONDS", 0.1)


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


def test_a_holder_that_is_stopped_is_named_and_one_that_goes_on_is_waited_for(tmp_path: Path, stopped: Start) -> None:
    holder = stopped(HOLDER, str(tmp_path / "lock"))
    with pytest.raises(HolderStopped, match=f"process {holder.pid} holds the lock") as told, flocked(tmp_path / "lock"):
        pass
    assert told.value.pid == holder.pid
    assert f"kill -CONT {holder.pid}" in told.value.hint
    os.kill(holder.pid, signal.SIGCONT)
    with flocked(tmp_path / "lock"):
        assert holder.wait(timeout=30) == 0


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


def test_a_rollback_ends_an_owner_that_was_stopped_in_a_renewal(tmp_path: Path, stopped: Start) -> None:
    store = LocalStore(f"file://{tmp_path}/store")
    owner = stopped(OWNER, store.uri)
    with pytest.raises(Conflict):
        take_over(store, "cpu")
    assert owner.wait(timeout=30) == -signal.SIGKILL
    take_over(store, "cpu")
    document = store.read_document(lease_name("cpu"))
    assert document is not None
    assert lease_of(document, "lease").free
    with Lease(store, lease_name("cpu")) as lease:
        assert lease.epoch == 3
