"""Running a build's tool: its output streams into the stage's log, and its end is classified.

    run = run_tool([trtllm_build, "--checkpoint_dir", str(source)], time_limit_seconds=7200)

The tool is a process of its own in our process group, so that a cancelled stage takes it along.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from llm_pipeline.engines.failures import BuildFailed, classify_failure
from llm_pipeline.errors import ConfigError
from llm_pipeline.logging import get_logger

log = get_logger(__name__)

_KEPT_LINES = 400
_GRACE_SECONDS = 20.0


@dataclass(frozen=True)
class ToolRun:
    """A tool that ended well.

    Attributes:
        lines: The last lines that it wrote, stdout and stderr in the order in which they came.
        seconds: Wall time.
    """

    lines: tuple[str, ...]
    seconds: float


def run_tool(
    command: Sequence[str],
    *,
    time_limit_seconds: float,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    on_line: Callable[[str], None] | None = None,
) -> ToolRun:
    """Run a tool to its end, logging each line that it writes.

    Args:
        command: Argument list; it shows in logs and the process list, so it must hold no secret.
        time_limit_seconds: It is stopped then.
        environment: The whole environment; None inherits ours.
        directory: Working directory; None inherits ours.
        on_line: Called with each line, for progress.

    Raises:
        ConfigError: The program cannot be started.
        BuildFailed: It failed for a reason that trying again does not change, or took too long.
        Transient: It was killed, or failed for a reason that may pass.
    """
    started = time.monotonic()
    tool = Path(command[0]).name
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=None if environment is None else dict(environment),
            cwd=directory,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise ConfigError(
            f"cannot start {tool}: {error}", where=command[0], hint="run the build in the target's own environment"
        ) from error
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    assert process.stdout is not None  # noqa: S101 - PIPE above
    reader = threading.Thread(target=_follow, args=(process.stdout, lines, tool, on_line), daemon=True)
    reader.start()
    timed_out = False
    try:
        process.wait(timeout=time_limit_seconds)
    except subprocess.TimeoutExpired:
        timed_out = True
    finally:
        _end(process)
    reader.join(timeout=_GRACE_SECONDS)
    seconds = time.monotonic() - started
    if timed_out:
        raise BuildFailed(
            f"{tool} was stopped after its time limit of {time_limit_seconds / 60:g} min",
            hint="raise build.time_limit_minutes, or look at the last lines of its log for where it stands",
        )
    if process.returncode:
        raise classify_failure(tool, process.returncode, tuple(lines))
    return ToolRun(tuple(lines), round(seconds, 3))


def _follow(stream: IO[str], lines: deque[str], tool: str, on_line: Callable[[str], None] | None) -> None:
    with stream:
        for raw in stream:
            line = raw.rstrip()
            if not line:
                continue
            lines.append(line)
            log.info(line, tool=tool)
            if on_line is not None:
                on_line(line)


def _end(process: subprocess.Popen[str]) -> None:
    """Stop the tool if it still runs: politely, then for good."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
