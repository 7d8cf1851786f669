"""Move all traffic to stable and stop the candidate, unless the canary was promoted. Always allowed, safe to repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_pipeline.base.records import Metric
from llm_pipeline.canary.record import Phase
from llm_pipeline.canary.router import Patience, router_as_it_is
from llm_pipeline.canary.slots import ServedPlace
from llm_pipeline.operations.rollback import ensure_rolled_back
from llm_pipeline.release.contract import Inputs, Stage, StageContext, StageOutput
from llm_pipeline.stages.place_config import PlaceConfig

if TYPE_CHECKING:
    from llm_pipeline.release_progress import ReleaseProgress


class RollbackConfig(PlaceConfig):
    """What the rollback reads; a stable that has ended is started anew.

    Attributes:
        leave_paused: A canary that waits for a person is left to wait, if a guard is there to watch its deadline.
    """

    leave_paused: bool = False


def run(context: StageContext[RollbackConfig]) -> StageOutput:
    """Roll an unfinished canary back; say what was found."""
    config = context.config
    router = router_as_it_is(config.place.router, config.place.slots, config.router_state)
    slots, patience = config.slots(context.store), Patience.with_router(config.place.router)
    place = ServedPlace(context.store, config.model_id, config.target, router, slots, patience)
    record = ensure_rolled_back(place, context.request.release_id, leave_paused=config.leave_paused)
    metrics: dict[str, Metric] = {"phase": record.phase.value if record else "never began"}
    if record is not None and record.phase is Phase.ROLLED_BACK:
        metrics["traffic_confirmed"] = int(bool(record.traffic_confirmed))
    return StageOutput(metrics=metrics)


def request(flow: ReleaseProgress, subject: str) -> tuple[RollbackConfig, Inputs]:
    """What the stage is given."""
    return RollbackConfig.of(flow, subject), {}


STAGE = Stage(name="rollback", version=1, config=RollbackConfig, request=request, run=run, publishes=False)
