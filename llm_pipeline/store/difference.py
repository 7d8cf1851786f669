"""What verification finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """One way in which an artifact is not what its manifest says."""

    path: str
    problem: str
