"""The settle stage: pointers and all traffic go to what the canary promoted; the version before it stays warm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_pipeline.canary.router import Patience, TrafficRouter
from llm_pipeline.config.model import Name
from llm_pipeline.operations.upkeep import promote
from llm_pipeline.release.contract import Inputs, Stage, StageContext, StageOutput
from llm_pipeline.stages.place_config import PlaceConfig
from llm_pipeline.store.place_state import Pointer

if TYPE_CHECKING:
    from llm_pipeline.release_progress import ReleaseProgress


class SettleConfig(PlaceConfig):
    """What became production.

    Attributes:
        recipe: The quantization recipe that was chosen.
    """

    recipe: Name


def run(context: StageContext[SettleConfig]) -> StageOutput:
    """Make it production, then give it the share of the traffic that stayed on stable.

    Raises:
        NotApproved: The release wants a person's approval before production, and has none.
        NotPromoted: The canary did not end in production.
        Transient: The traffic cannot be moved now; the same call is safe again.
    """
    config = context.config

    def find_router(production: Pointer) -> TrafficRouter:
        return config.open_router(production.slot, owner="settlement")

    patience = Patience.with_router(config.place.router)
    state = promote(
        context.store,
        config.target,
        model_id=config.model_id,
        release_id=context.request.release_id,
        repository=context.request.inputs["repository"],
        recipe=config.recipe,
        find_router=find_router,
        patience=patience,
    )
    production, previous = state.production, state.way_back_to
    return StageOutput(
        metrics={
            "production": production.release_id if production else None,
            "slot": production.slot if production else None,
            "previous": previous.release_id if previous else None,
        }
    )


def request(flow: ReleaseProgress, subject: str) -> tuple[SettleConfig, Inputs]:
    """What the stage is given."""
    config = SettleConfig.of(flow, subject, recipe=flow.chosen_recipe(subject))
    return config, {"repository": flow.artifact("package", subject, "repository")}


STAGE = Stage(name="settle", version=1, config=SettleConfig, request=request, run=run, publishes=False)
