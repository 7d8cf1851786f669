"""Traffic on stable, the candidate stopped, unless the canary was promoted. No preconditions, as often as you like."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from llm_pipeline.base.records import ArtifactRef, Metric
from llm_pipeline.canary.open_router import router_as_it_is
from llm_pipeline.canary.patience import Patience
from llm_pipeline.canary.record import Phase
from llm_pipeline.canary.slots import TritonSlots, slot_ports
from llm_pipeline.config.deployment import TargetPlace
from llm_pipeline.config.model import ConfigModel, Name
from llm_pipeline.operations.trial_rollback import ensure_rolled_back
from llm_pipeline.release.contract import Stage, StageContext, StageOutput
from llm_pipeline.stages.request_parts import server_software

if TYPE_CHECKING:
    from llm_pipeline.flow import Flow


class RollbackConfig(ConfigModel):
    """What the rollback reads.

    Attributes:
        model_id: `organisation/name` on the hub.
        target: Name of the deployment's place: the target's own, unless the release config names another.
        place: Ports of the slots and of the router.
        state_root: Directory of the running servers' state.
        triton_home: Directory with the unpacked nvidia-pytriton wheel: a stable that has ended is started anew.
        python: Interpreter of the model's code in Triton.
        leave_paused: A canary that waits for a person is left to wait, if a guard is there to watch its deadline.
    """

    model_id: str
    target: Name
    place: TargetPlace
    state_root: str
    triton_home: str
    python: str
    leave_paused: bool = False


def run(context: StageContext[RollbackConfig]) -> StageOutput:
    """Roll an unfinished canary back; say what was found."""
    config = context.config
    state_root = Path(config.state_root)
    slots = TritonSlots(
        context.store,
        config.place,
        target=config.target,
        state_root=state_root,
        triton_home=Path(config.triton_home),
        python=Path(config.python),
    )
    router_state = state_root / config.target / "router"
    router = router_as_it_is(config.place.router, slot_ports(config.place), router_state)
    record = ensure_rolled_back(
        context.store,
        context.request.release_id,
        config.target,
        router=router,
        slots=slots,
        patience=Patience.with_router(config.place.router),
        leave_paused=config.leave_paused,
    )
    metrics: dict[str, Metric] = {"phase": record.phase.value if record else "never began"}
    if record is not None and record.phase is Phase.ROLLED_BACK:
        metrics["traffic_confirmed"] = int(bool(record.traffic_confirmed))
    return StageOutput(metrics=metrics)


def request(flow: Flow, subject: str) -> tuple[RollbackConfig, Mapping[str, ArtifactRef]]:
    """What the stage is given."""
    config = RollbackConfig(
        model_id=flow.record.model.id,
        target=flow.record.place_of(subject),
        place=flow.place(subject),
        state_root=flow.deployment.state_root,
        **server_software(flow, subject),
    )
    return config, {}


STAGE = Stage(
    name="rollback",
    version=1,
    config=RollbackConfig,
    request=request,
    run=run,
    environment="control",
    publishes=False,
    reusable=False,
)
