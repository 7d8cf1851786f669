"""What a canary is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.patience import Patience
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.store.pointers import Pointer


@dataclass(frozen=True)
class CanaryPlan:
    """What is to be promoted, over what, and by which rules.

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
    def production_since(self) -> datetime | None:
        """When the pointers were moved last; it tells one production from the next."""
        return self.production.promoted_at if self.production else None
