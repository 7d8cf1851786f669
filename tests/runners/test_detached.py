import os
import signal
import sys
import time
from pathlib import Path

import pytest
from waiting import until

from llm_pipeline.base import detached

_SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
_PARENT_OF_A_STUBBORN_CHILD = [
    sys.executable,
    "-c",
    "import subprocess, sys, time\n"
    "ignore = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); '\n"
    'code = ignore + \'open("stubborn", "w"); time.sleep(60)\'\n'
    "subprocess.Popen([sys.executable, '-c', code])\n"
    "time.sleep(60)",
]


def start(tmp_path: Path, command: list[str]) -> detached.DetachedProcess:
    return detached.start("sleeper", command, tmp_path / "process.json", log=tmp_path / "log", directory=tmp_path)


def test_a_started_process_is_found_again_by_its_record_and_another_with_its_pid_is_not(tmp_path: Path) -> None:
    process = start(tmp_path, _SLEEP)
    try:
        found = detached.load(tmp_path / "process.json")
        assert found == process
        assert found.alive
        assert not process.model_copy(update={"start_ticks": process.start_ticks - 1000}).alive
    finally:
        detached.stop(process)
    assert not process.alive


@pytest.mark.parametrize("parent", ["stopped with it", "killed before"])
def test_stopping_ends_children_that_ignore_sigterm(tmp_path: Path, parent: str) -> None:
    process = start(tmp_path, _PARENT_OF_A_STUBBORN_CHILD)
    until((tmp_path / "stubborn").exists)
    if parent == "killed before":
        os.kill(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)
        assert not process.alive
        assert process.session_alive
    detached.stop(process, grace_seconds=0.2)
    assert not process.session_alive


def test_stopping_ends_a_child_in_a_process_group_of_its_own_as_soon_as_the_group_has_ended(tmp_path: Path) -> None:
    """As vLLM's is, which would load its weights again beside whatever comes next."""
    child = "import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', sys.argv[1]], process_group=0)"
    child += "\ntime.sleep(60)"
    code = "import os, time; print(os.getpid(), file=open('stubborn', 'w'), flush=True); time.sleep(60)"
    process = start(tmp_path, [sys.executable, "-c", child, code])
    until((tmp_path / "stubborn").exists)
    began = time.monotonic()
    detached.stop(process, grace_seconds=30)
    assert detached.process_start_ticks(int((tmp_path / "stubborn").read_text())) is None
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("content", [b"", b'{"name": "slee', b"\xff\x00", b"{}"])
def test_a_damaged_record_names_no_process_and_is_told_once(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    record = tmp_path / "process.json"
    record.write_bytes(content)
    assert [detached.load(record) for _ in range(3)] == [None] * 3
    assert caplog.text.count("the record of a process is damaged") == 1
