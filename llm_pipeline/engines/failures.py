"""What the failure of a build's tool means, from its exit code and its last lines, and what to do about it."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from llm_pipeline.errors import PipelineError, StageCrashed, Terminal, Transient

_SHOWN_LINES = 12


class BuildFailed(Terminal):
    """The build's tool failed for a reason that trying again does not change."""


class BuildInterrupted(Transient):
    """The build's tool failed for a reason that may pass."""


@dataclass(frozen=True)
class KnownFailure:
    """A text that tools are known to end with.

    Attributes:
        pattern: Looked for in the last lines.
        meaning: What it means.
        advice: What to do.
        passes: Whether trying again may help.
    """

    pattern: re.Pattern[str]
    meaning: str
    advice: str
    passes: bool = False


def classify_failure(tool: str, exit_code: int, lines: Sequence[str]) -> PipelineError:
    """The error of a tool that ended with a non-zero exit code; negative ones are signals."""
    text = "\n".join(lines)
    tail = "\n".join(lines[-_SHOWN_LINES:])
    for known in KNOWN_FAILURES:
        if known.pattern.search(text):
            family = BuildInterrupted if known.passes else BuildFailed
            return family(f"{tool}: {known.meaning}; its last lines:\n{tail}", hint=known.advice)
    if exit_code == -signal.SIGKILL:
        return BuildFailed(
            f"{tool} was killed by the kernel or an operator, most likely for host memory; its last lines:\n{tail}",
            hint="give the build more host memory, or fewer build.workers; see the kernel's log (dmesg)",
        )
    if exit_code < 0:
        return StageCrashed(f"{tool} was ended by {signal.Signals(-exit_code).name}; its last lines:\n{tail}")
    return BuildFailed(f"{tool} ended with exit code {exit_code}; its last lines:\n{tail}")


KNOWN_FAILURES: tuple[KnownFailure, ...] = (
    KnownFailure(
        re.compile(r"CUDA out of memory|OutOfMemoryError|cudaErrorMemoryAllocation", re.IGNORECASE),
        "out of GPU memory",
        "lower limits.maximum_sequences or maximum_batched_tokens, use a smaller format, or more GPUs",
    ),
)
"""More specific ones first."""
