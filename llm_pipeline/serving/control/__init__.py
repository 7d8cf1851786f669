"""Server control: a candidate's server is started, found, drained and stopped in the same way wherever it runs.

    control = open_control(place, slot)
    server = control.start(candidate, wait_seconds=600)
    server.endpoint                 # where it answers, and what a client needs
    control.find()                  # the same server, from any process of this host
    control.stop(drain_seconds=30)  # removes all that it left; does nothing without a server

No process memory is needed to find or stop a server, so a server whose starter was killed can be stopped, too.
"""

from __future__ import annotations

from llm_pipeline.serving.control.server import (
    Candidate,
    ServerControl,
    StagedServer,
    StagingSlot,
    endpoint_of,
    open_control,
)

__all__ = ["Candidate", "ServerControl", "StagedServer", "StagingSlot", "endpoint_of", "open_control"]
