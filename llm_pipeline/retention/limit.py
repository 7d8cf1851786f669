"""How much of a store one retention run may take: a run that would take most of it has probably misread it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llm_pipeline.base.errors import Terminal
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.inspection.table import readable_bytes
from llm_pipeline.retention.plan import RetentionPlan


class TooMuchToRemove(Terminal):
    """A run would take more of the store than the deployment lets it."""


@dataclass(frozen=True)
class Taken:
    """How much of a store nobody needs: what goes now, and what is condemned and goes later.

    Attributes:
        artifacts: How many artifacts.
        of_artifacts: How many there are.
        bytes: Their size, as far as it is known.
        of_bytes: The size of all, likewise.
    """

    artifacts: int
    of_artifacts: int
    bytes: int
    of_bytes: int

    @property
    def share(self) -> float:
        """The larger one of both shares, 0 to 1."""
        return max(self.artifacts / max(1, self.of_artifacts), self.bytes / max(1, self.of_bytes))

    def __str__(self) -> str:
        size = f"{readable_bytes(self.bytes)} of {readable_bytes(self.of_bytes)}"
        return f"{self.artifacts} of the store's {self.of_artifacts} artifacts ({size})"


def taken(plan: RetentionPlan, sizes: Mapping[ArtifactRef, int | None]) -> Taken:
    """How much of a store a plan takes."""
    going = plan.stored & {*plan.condemned, *plan.waiting, *plan.removed}
    return Taken(
        artifacts=len(going),
        of_artifacts=len(plan.stored),
        bytes=sum(sizes.get(ref) or 0 for ref in going),
        of_bytes=sum(sizes.get(ref) or 0 for ref in plan.stored),
    )


def refusal(found: Taken, limit: float) -> str:
    """Why a run does not remove anything, and what to do about it; empty when it may.

    Args:
        found: What it would take.
        limit: The share that it may take, 0 to 1.
    """
    if found.share <= limit:
        return ""
    return f"nobody needs {found}: more than the {limit:.0%} that a run may take (retention.max_deleted_share)"


FORCE = "look at the list of `llm-pipeline gc`; if it is right, run `llm-pipeline gc --delete --force`"
"""What to do about a refusal."""
