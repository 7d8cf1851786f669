"""A holder of a model's claim: a run of this very process, or of one that has ended."""

from __future__ import annotations

from datetime import UTC, datetime

from llm_pipeline.release.claim import Claimant, LocalProcess


def holder(*, parked: bool = False, pid_offset: int = 0) -> Claimant:
    now, here = datetime.now(UTC), LocalProcess.here()
    party = here.model_copy(update={"start_ticks": here.start_ticks + pid_offset})
    return Claimant(
        party=party, release="r", release_id="r-1", since=now, renewed_at=now,
        stale_after_hours=1.0, parked=parked,
    )  # fmt: skip
