"""Staging down: stop the candidate's server, wherever it runs; nothing there is fine."""

from __future__ import annotations

import time

from pydantic import Field

from llm_pipeline.serving.control import open_control
from llm_pipeline.stages.contract import Stage, StageContext, StageOutput
from llm_pipeline.stages.staging import ServerSlotConfig


class StagingDownConfig(ServerSlotConfig):
    """What is stopped.

    Attributes:
        drain_seconds: Longest wait for requests in flight.
    """

    drain_seconds: float = Field(default=0.0, ge=0.0)


def run(context: StageContext[StagingDownConfig]) -> StageOutput:
    """Stop the staging server with all it left.

    Raises:
        Transient: The place cannot be reached, or something does not end.
    """
    control = open_control(context.config.place, context.config.slot)
    running = control.find()
    started = time.monotonic()
    control.stop(drain_seconds=context.config.drain_seconds)
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
    places=frozenset({"place", "state", "triton_home", "python"}),
    reusable=False,
)
