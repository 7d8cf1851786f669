"""Shared-memory segments of one Triton server: named so that they can be told from everybody else's, and removed."""

from __future__ import annotations

import hashlib
from pathlib import Path

_DIRECTORY = Path("/dev/shm")  # noqa: S108 - where the kernel keeps POSIX shared memory


def segment_prefix(state: Path) -> str:
    """The prefix of the segments of the server whose state directory this is; the same after a restart."""
    return f"llm_pipeline_{hashlib.sha256(str(state.resolve()).encode()).hexdigest()[:16]}_"


def segments(prefix: str) -> list[Path]:
    """The segments with this prefix that exist now."""
    return sorted(_DIRECTORY.glob(f"{prefix}*"))


def remove_segments(prefix: str) -> int:
    """Remove the segments with this prefix, which a killed server leaves behind; returns how many."""
    found = segments(prefix)
    for segment in found:
        segment.unlink(missing_ok=True)
    return len(found)
