import os
import signal
import sys
import time
from pathlib import Path

import pytest

from llm_pipeline.errors import ConfigError
from llm_pipeline.runners import detached

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


def wait_for_the_child(tmp_path: Path) -> None:
    deadline = time.monotonic() + 10
    while not (tmp_path / "stubborn").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_started_process_is_found_again_by_its_record(tmp_path: Path) -> None:
    process = start(tmp_path, _SLEEP)
    try:
        found = detached.load(tmp_path / "process.json")
        assert found == process
        assert found.alive
    finally:
        detached.stop(process)
    assert not process.alive


def test_stopping_ends_children_that_ignore_sigterm(tmp_path: Path) -> None:
    process = start(tmp_path, _PARENT_OF_A_STUBBORN_CHILD)
    wait_for_the_child(tmp_path)
    detached.stop(process, grace_seconds=0.5)
    assert not process.group_alive


def test_stopping_ends_children_whose_parent_was_killed(tmp_path: Path) -> None:
    process = start(tmp_path, _PARENT_OF_A_STUBBORN_CHILD)
    wait_for_the_child(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)
    assert not process.alive
    assert process.group_alive
    detached.stop(process, grace_seconds=0.2)
    assert not process.group_alive


def test_another_process_with_the_same_pid_is_never_touched(tmp_path: Path) -> None:
    process = start(tmp_path, _SLEEP)
    stranger = process.model_copy(update={"start_ticks": process.start_ticks - 1000})
    try:
        assert not stranger.alive
    finally:
        detached.stop(process)


def test_a_program_that_does_not_exist_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot start sleeper"):
        start(tmp_path, ["/no/such/program"])


def test_stopping_twice_is_fine(tmp_path: Path) -> None:
    process = start(tmp_path, _SLEEP)
    detached.stop(process)
    detached.stop(process)


def test_a_process_started_elsewhere_survives_its_starter(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from llm_pipeline.runners import detached; import sys;"
        f"d = Path({str(tmp_path)!r}); detached.start('s', {_SLEEP!r}, d / 'process.json', log=d / 'log')"
    )
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0
    process = detached.load(tmp_path / "process.json")
    assert process is not None
    try:
        assert process.alive
    finally:
        detached.stop(process)
