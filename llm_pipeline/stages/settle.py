"""The settle stage: the pointers move to what the canary promoted; the version before it stays warm."""

from __future__ import annotations

from llm_pipeline.canary.promotion import settle_production
from llm_pipeline.config.model import ConfigModel, Name
from llm_pipeline.stages.contract import Stage, StageContext, StageOutput


class SettleConfig(ConfigModel):
    """What became production.

    Attributes:
        model_id: `organisation/name` on the hub.
        target: Name of the deployment's place: the target's own, unless the release config names another.
        recipe: The quantization recipe that was chosen.
    """

    model_id: str
    target: Name
    recipe: Name


def run(context: StageContext[SettleConfig]) -> StageOutput:
    """Move the pointers.

    Raises:
        NotPromoted: The canary did not end in production.
        Conflict: Somebody else moved them at the same moment.
    """
    config = context.config
    pointers = settle_production(
        context.store,
        model_id=config.model_id,
        target=config.target,
        release_id=context.request.release_id,
        repository=context.request.inputs["repository"],
        recipe=config.recipe,
    )
    production, previous = pointers.production, pointers.previous
    return StageOutput(
        metrics={
            "production": production.release_id if production else None,
            "slot": production.slot if production else None,
            "previous": previous.release_id if previous else None,
        }
    )


STAGE = Stage(
    name="settle", version=1, config=SettleConfig, run=run, environment="control", publishes=False, reusable=False
)
