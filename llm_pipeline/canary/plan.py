"""The plan of a canary, and its attempts: the next run of a release tries a canary that has ended again.

Within one run the record stands: a retry, or a controller after a crash, returns the judgement that was made.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.access_log import LogCursor
from llm_pipeline.canary.patience import Patience
from llm_pipeline.canary.record import CanaryRecord, Phase
from llm_pipeline.canary.router import RouteState, other_slot
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.store.place_state import Pointer


@dataclass(frozen=True)
class CanaryPlan:
    """What to promote, over which production, and by which rules.

    Attributes:
        run: The run of the release that asks; another one may try a settled canary again, the same one may not.
        production: What serves now; None for the first deployment on the target.
        can_replay: The users' port of its router is known here, so prompts can be replayed there.
    """

    release_id: str
    run: str
    target: str
    candidate: ArtifactRef
    production: Pointer | None
    policy: CanaryPolicy
    patience: Patience = field(default_factory=Patience)
    can_replay: bool = True

    @property
    def driver(self) -> str:
        """Who drives it: this process, in events and routes."""
        return f"{self.release_id}@{socket.gethostname()}.{os.getpid()}"

    @property
    def production_since(self) -> datetime | None:
        """When the pointers moved last; it distinguishes one production from the next."""
        return self.production.promoted_at if self.production else None


def first_attempt(plan: CanaryPlan, cursor: LogCursor) -> CanaryRecord:
    """A canary that has done nothing yet; `cursor` is where the access log ends now."""
    production = plan.production
    return CanaryRecord(
        release_id=plan.release_id,
        run=plan.run,
        began_run=plan.run,
        target=plan.target,
        repository=plan.candidate,
        stable=production.slot if production else None,
        stable_repository=production.repository if production else None,
        candidate=other_slot(production.slot) if production else "blue",
        production_since=plan.production_since,
        policy=plan.policy,
        began_at=time.time(),
        began_cursor=cursor,
        cursor=cursor,
    )


def next_attempt(earlier: CanaryRecord, plan: CanaryPlan, cursor: LogCursor) -> CanaryRecord:
    """The canary from its beginning; the events say how the earlier ones ended."""
    kept = {"epoch": earlier.epoch, "attempt": earlier.attempt + 1, "events": earlier.events}
    return first_attempt(plan, cursor).model_copy(update=kept)


def is_over(record: CanaryRecord, plan: CanaryPlan, traffic: Callable[[], RouteState]) -> bool:
    """Whether a canary belongs to an earlier run and has ended, so that this run may start a new one.

    A promotion whose traffic is in force and whose pointers nobody has moved yet is not over: its run ended between
    promotion and settlement, and this one settles it.

    Args:
        record: The canary as stored.
        plan: What this run wants.
        traffic: Reads the router.
    """
    if record.run == plan.run:
        return False
    if record.phase is Phase.PROMOTED:
        return record.production_since != plan.production_since or not _in_force(record, traffic())
    return record.phase in (Phase.ROLLED_BACK, Phase.ROLLING_BACK)


def _in_force(record: CanaryRecord, traffic: RouteState) -> bool:
    return record.applied is not None and record.applied.same_traffic(traffic)
