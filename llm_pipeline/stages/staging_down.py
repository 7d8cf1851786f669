"""Staging down: stop the candidate's server, wherever it runs, and a comparison's that was left; none is fine."""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import Field

from llm_pipeline.release.contract import Stage, StageContext, StageOutput
from llm_pipeline.serving.control import open_control
from llm_pipeline.serving.triton_server import stop_server
from llm_pipeline.stages.staging import ServerSlotConfig


class StagingDownConfig(ServerSlotConfig):
    """What is stopped.

    Attributes:
        drain_seconds: Longest wait for requests in flight.
        comparison_state: Directory of the server that production is compared with: a load test that was killed may
            have left it running.
    """

    drain_seconds: float = Field(default=0.0, ge=0.0)
    comparison_state: str | None = None


def run(context: StageContext[StagingDownConfig]) -> StageOutput:
    """Stop the staging server with all it left.

    Raises:
        Transient: The place cannot be reached, or something does not end.
    """
    control = open_control(context.config.place, context.config.slot)
    running = control.find()
    started = time.monotonic()
    control.stop(drain_seconds=context.config.drain_seconds)
    if context.config.comparison_state:
        stop_server(Path(context.config.comparison_state))
    seconds = time.monotonic() - started
    return StageOutput(
        metrics={"was_running": int(running is not None), "stop_seconds": round(seconds, 3)}, tool_seconds=seconds
    )


STAGE = Stage(
    name="staging_down",
    version=2,
    config=StagingDownConfig,
    run=run,
    environment="control",
    publishes=False,
    places=frozenset({"place", "state", "triton_home", "python", "comparison_state"}),
    reusable=False,
)
