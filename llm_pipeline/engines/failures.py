"""What the failure of a build's tool means, from its exit code and its last lines, and what to do about it."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from llm_pipeline.base.errors import PipelineError, StageCrashed, Terminal, Transient

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
