"""Whatever goes wrong in any program of the package ends with one error and an exit code that is no verdict."""

from __future__ import annotations

import errno
import importlib
import inspect
import logging
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_pipeline.base.entry import entry_point
from llm_pipeline.base.errors import ConfigError, ExitCode, Transient

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "llm_pipeline"


def ending_with(raised: BaseException) -> Callable[[], int]:
    @entry_point
    def main() -> int:
        raise raised

    return main


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (ConfigError("wrong", where="release.yaml:3"), ExitCode.BAD_INPUT),
        (Transient("the store does not answer"), ExitCode.INFRASTRUCTURE),
        (ModuleNotFoundError("No module named 'jinja2'", name="jinja2"), ExitCode.BAD_INPUT),
        (OSError(errno.ENOSPC, "No space left on device", "/work/x"), ExitCode.INFRASTRUCTURE),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), ExitCode.INFRASTRUCTURE),  # of a socket: stdout is fine
        (OverflowError("math range error"), ExitCode.INFRASTRUCTURE),
        (RecursionError("maximum recursion depth exceeded"), ExitCode.INFRASTRUCTURE),
        (MemoryError(), ExitCode.INFRASTRUCTURE),
        (SystemExit(1), ExitCode.INFRASTRUCTURE),  # of a library: 1 would mean NO_GO
        (ExceptionGroup("two", [ConfigError("wrong"), ValueError()]), ExitCode.BAD_INPUT),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(int(value)),
)
def test_every_exception_has_its_exit_code_and_ends_with_one_line(
    raised: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ending_with(raised)() == code
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith(("error: ", "interrupted: "))


def test_only_what_nobody_expected_leaves_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    assert ending_with(ConfigError("wrong"))() == ExitCode.BAD_INPUT
    assert ending_with(PermissionError(errno.EACCES, "Permission denied", "/work"))() == ExitCode.INFRASTRUCTURE
    assert caplog.records == []
    assert ending_with(ZeroDivisionError("a fault"))() == ExitCode.INFRASTRUCTURE
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ZeroDivisionError)


def run(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
        **{"stdout": subprocess.PIPE, **options},
    )


_SAYS_MUCH = """
import sys
from llm_pipeline.base.entry import ArgumentParser, entry_point
@entry_point
def main():
    {body}
raise SystemExit(main())
"""


@pytest.mark.parametrize(
    "body", ['sys.stdout.write("x")', 'sys.stdout.write("x" * 100000)'], ids=["at the end", "at once"]
)
def test_a_full_disk_below_stdout_is_infrastructure(body: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(_SAYS_MUCH.format(body=body), stdout=full)
    assert done.returncode == ExitCode.INFRASTRUCTURE
    assert "No space left on device -> free disk space" in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_stdout_that_nobody_reads_any_more_is_no_error(monkeypatch: pytest.MonkeyPatch, unbuffered: str) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    reads, writes = os.pipe()
    os.close(reads)
    done = run(_SAYS_MUCH.format(body='sys.stdout.write("x" * 100000)'), stdout=writes)
    os.close(writes)
    assert (done.returncode, done.stderr) == (141, "")


def test_termination_ends_the_blocks_of_a_command_and_is_told_from_an_interruption(tmp_path: Path) -> None:
    code = (
        "import sys, time; from llm_pipeline.cli import main, store\n"
        "def wait(_):\n"
        "    try: sys.stdout.write('ready\\n'); sys.stdout.flush(); time.sleep(30)\n"
        "    finally: sys.stdout.write('stopped what it started\\n')\n"
        "store._ls = wait\n"
        "raise SystemExit(main(['ls']))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 143
        assert process.stdout.read() == "stopped what it started\n"


def programs() -> Iterator[tuple[str, Any]]:
    """Modules that a person or a process of ours runs, and how pytest names them; not what runs below Triton."""
    for path in sorted(PACKAGE.rglob("*.py")):
        own = path != PACKAGE / "base" / "entry.py" and PACKAGE / "serving" / "models" not in path.parents
        if own and '__name__ == "__main__"' in path.read_text():
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts), path


PROGRAMS = dict(programs())


def _console_scripts() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [target.partition(":")[0] for target in project["scripts"].values()]


@pytest.mark.parametrize("module", [*_console_scripts(), *PROGRAMS])
def test_an_exception_that_nobody_expected_ends_every_program_with_5_and_a_traceback_without_credentials(
    module: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        main = importlib.import_module(module).main
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not in this environment")
    inner = inspect.unwrap(main)
    assert inner is not main, f"{module}.main is no entry point"

    def fail(frame: Any, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code is inner.__code__:
            raise RuntimeError("cannot reach https://user:hunter2@hub.example")

    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    sys.setprofile(fail)
    try:
        code = main()
    finally:
        sys.setprofile(None)
    assert code == ExitCode.INFRASTRUCTURE
    error = capsys.readouterr().err
    assert "Traceback (most recent call last)" in error
    told = "error: RuntimeError: cannot reach https://***@hub.example -> see the traceback in the log"
    assert error.endswith(f"{told} (docs/runbooks.md#internalerror)\n")
    assert "hunter2" not in error
