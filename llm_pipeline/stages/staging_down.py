"""Stop the candidate's staging server, wherever it runs, and a comparison server that was left; there may be none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llm_pipeline.release.contract import Inputs, Stage, StageContext, StageOutput
from llm_pipeline.serving.control import open_control
from llm_pipeline.serving.triton_server import stop_server
from llm_pipeline.stages.request_parts import server_slot
from llm_pipeline.stages.staging import ServerSlotConfig

if TYPE_CHECKING:
    from llm_pipeline.release_progress import ReleaseProgress


class StagingDownConfig(ServerSlotConfig):
    """What is stopped.

    Attributes:
        comparison_state: Directory of the server that production is compared with: a load test that was killed may
            have left it running.
    """

    comparison_state: str | None = None


def run(context: StageContext[StagingDownConfig]) -> StageOutput:
    """Stop the staging server with all it left.

    Raises:
        Transient: The place cannot be reached, or something does not end.
    """
    config = context.config
    control = open_control(config.place, config.slot)
    was_running = control.find() is not None
    control.stop()
    if config.comparison_state:
        stop_server(Path(config.comparison_state))
    return StageOutput(metrics={"was_running": int(was_running)})


def request(flow: ReleaseProgress, subject: str) -> tuple[StagingDownConfig, Inputs]:
    """What the stage is given."""
    comparison = flow.state_directory(subject, "comparison")
    return StagingDownConfig(**server_slot(flow, subject), comparison_state=comparison), {}


STAGE = Stage(name="staging_down", version=2, config=StagingDownConfig, request=request, run=run, publishes=False)
