"""Staging down: stop the candidate's server; nothing there is fine."""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import Field

from llm_pipeline.config.model import ConfigModel
from llm_pipeline.serving.triton_server import find_server, stop_server
from llm_pipeline.stages.contract import Stage, StageContext, StageOutput


class StagingDownConfig(ConfigModel):
    """What is stopped.

    Attributes:
        state: The staging slot's directory.
        drain_seconds: Longest wait for requests in flight.
    """

    state: str
    drain_seconds: float = Field(default=0.0, ge=0.0)


def run(context: StageContext[StagingDownConfig]) -> StageOutput:
    """Stop the staging server with all it left."""
    state = Path(context.config.state)
    running = find_server(state)
    started = time.monotonic()
    stop_server(state, drain_seconds=context.config.drain_seconds)
    seconds = time.monotonic() - started
    return StageOutput(
        metrics={"was_running": int(running is not None), "stop_seconds": round(seconds, 3)}, tool_seconds=seconds
    )


STAGE = Stage(
    name="staging_down",
    version=1,
    config=StagingDownConfig,
    run=run,
    environment="control",
    places=frozenset({"state"}),
    reusable=False,
)
