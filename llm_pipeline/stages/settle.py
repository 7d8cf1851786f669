"""The settle stage: pointers and all traffic go to what the canary promoted; the version before it stays warm."""

from __future__ import annotations

from pathlib import Path

from llm_pipeline.canary.moving import Patience
from llm_pipeline.canary.open_router import open_router
from llm_pipeline.canary.router import all_to
from llm_pipeline.canary.slots import slot_ports
from llm_pipeline.config.deployment import TargetPlace
from llm_pipeline.config.model import ConfigModel, Name
from llm_pipeline.operations.promotion import settle_production
from llm_pipeline.operations.settling import give_all_traffic
from llm_pipeline.stages.contract import Stage, StageContext, StageOutput


class SettleConfig(ConfigModel):
    """What became production.

    Attributes:
        model_id: `organisation/name` on the hub.
        target: Name of the deployment's place: the target's own, unless the release config names another.
        recipe: The quantization recipe that was chosen.
        place: Ports of the slots and of the router.
        state_root: Directory of the running servers' state.
    """

    model_id: str
    target: Name
    recipe: Name
    place: TargetPlace
    state_root: str


def run(context: StageContext[SettleConfig]) -> StageOutput:
    """Move the pointers, then the share of the traffic that stayed on stable.

    Raises:
        NotPromoted: The canary did not end in production.
        Conflict: Somebody else moved them at the same moment.
        Transient: The traffic cannot be moved now; the same call is safe again.
    """
    config, release_id = context.config, context.request.release_id
    pointers = settle_production(
        context.store,
        model_id=config.model_id,
        target=config.target,
        release_id=release_id,
        repository=context.request.inputs["repository"],
        recipe=config.recipe,
    )
    production, previous = pointers.production, pointers.previous
    if production is not None:
        router = open_router(
            config.place.router,
            slot_ports(config.place),
            Path(config.state_root) / config.target / "router",
            initial=all_to(production.slot, owner="settlement", epoch=0),
        )
        give_all_traffic(context.store, config.target, release_id, router, Patience.with_router(config.place.router))
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
