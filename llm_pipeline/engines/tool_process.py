"""Running a build's tool: its output streams into the stage's log, and its end is classified.

    seconds = run_tool([trtllm_build, "--checkpoint_dir", str(source)], time_limit_seconds=7200)

The tool is a process of its own in our process group, so that a cancelled stage ends it, too. What its failure means
follows from its exit code and its last lines (`known_failures.yaml`).
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

import psutil
import yaml

from llm_pipeline.base.errors import ConfigError, PipelineError, StageCrashed, Terminal, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.plain_environment import plain_environment

log = get_logger(__name__)

_KEPT_LINES = 400
_GRACE_SECONDS = 20.0
_MARK = "LLM_PIPELINE_TOOL"
_SECONDS_BETWEEN_LOOKS = 0.1


_SHOWN_LINES = 12


class BuildFailed(Terminal):
    """The build's tool failed for a reason that trying again does not change."""


class BuildInterrupted(Transient):
    """The build's tool failed for a reason that may pass."""


@cache
def _known_failures() -> list[dict[str, Any]]:
    known: list[dict[str, Any]] = yaml.safe_load((files(__package__) / "known_failures.yaml").read_text("utf-8"))
    return known


def classify_failure(tool: str, exit_code: int, lines: Sequence[str]) -> PipelineError:
    """The error of a tool that ended with a non-zero exit code; negative ones are signals."""
    text = "\n".join(lines)
    tail = "\n".join(lines[-_SHOWN_LINES:])
    for known in _known_failures():
        if re.search(known["pattern"], text, re.IGNORECASE):
            family = BuildInterrupted if known.get("passes") else BuildFailed
            return family(f"{tool}: {known['meaning']}; its last lines:\n{tail}", hint=known["advice"])
    if exit_code == -signal.SIGKILL:
        return BuildFailed(
            f"{tool} was killed by the kernel or an operator, most likely for host memory; its last lines:\n{tail}",
            hint="give the build more host memory, or fewer build.workers; see the kernel's log (dmesg)",
        )
    if exit_code < 0:
        return StageCrashed(f"{tool} was ended by {signal.Signals(-exit_code).name}; its last lines:\n{tail}")
    return BuildFailed(f"{tool} ended with exit code {exit_code}; its last lines:\n{tail}")


def run_tool(
    command: Sequence[str], *, time_limit_seconds: float, name: str = "", variables: Mapping[str, str] | None = None
) -> float:
    """Run a tool to its end, logging each line that it writes; what it started ends with it. Returns its seconds.

    Args:
        command: Argument list; it shows in logs and the process list, so it must hold no secret.
        time_limit_seconds: It is stopped then.
        name: What it is called in logs and errors; the program's name by default.
        variables: Added to what our environment has without secrets.

    Raises:
        ConfigError: The program cannot be started.
        BuildFailed: It failed for a reason that trying again does not change, or took too long.
        Transient: It was killed, or failed for a reason that may pass.
    """
    started, tool = time.monotonic(), name or Path(command[0]).name
    mark = uuid.uuid4().hex
    process = _start(command, tool, {**(variables or {}), _MARK: mark})
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    assert process.stdout is not None  # noqa: S101 - a pipe, by _start
    reader = threading.Thread(target=_follow, args=(process.stdout, lines, tool), daemon=True)
    reader.start()
    timed_out = False
    try:
        process.wait(timeout=time_limit_seconds)
    except subprocess.TimeoutExpired:
        timed_out = True
    finally:
        _end(process, mark)
    reader.join(timeout=_GRACE_SECONDS)
    if timed_out:
        hint = "raise build.time_limit_minutes, or look at the last lines of its log for where it stands"
        raise BuildFailed(f"{tool} was stopped after its time limit of {time_limit_seconds / 60:g} min", hint=hint)
    if process.returncode:
        raise classify_failure(tool, process.returncode, tuple(lines))
    return round(time.monotonic() - started, 3)


def _start(command: Sequence[str], tool: str, variables: Mapping[str, str]) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=plain_environment() | dict(variables),
            text=True,
            errors="replace",
        )
    except OSError as error:
        hint = "run the build in the target's own environment"
        raise ConfigError(f"cannot start {tool}: {error}", where=command[0], hint=hint) from error


def _follow(stream: IO[str], lines: deque[str], tool: str) -> None:
    with stream:
        for raw in stream:
            if line := raw.rstrip():
                lines.append(line)
                log.info(line, tool=tool)


def _end(process: subprocess.Popen[str], mark: str) -> None:
    """Stop the tool if it still runs (SIGTERM, then SIGKILL), and kill what it started: its ranks hold GPUs.

    What a tool has left behind is nobody's child; its environment tells whose it was, but not at the moment in which it
    becomes another program: so it is looked for until it is not seen twice.
    """
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    unseen, deadline = 0, time.monotonic() + _GRACE_SECONDS
    while unseen < 2 and time.monotonic() < deadline:  # noqa: PLR2004 - twice
        unseen += 1
        for other in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):  # it has ended, or is another user's
                if other.environ().get(_MARK) == mark:
                    other.kill()  # psutil sees to it that this is the same process, not a later one of its pid
                    unseen = 0
        time.sleep(_SECONDS_BETWEEN_LOOKS)
