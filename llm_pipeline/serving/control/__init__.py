"""Server control: a candidate's server is started, found, drained and stopped the same way wherever it runs.

    control = open_control(place, slot)
    server = control.start(candidate, wait_seconds=600)
    server.endpoint                 # where it answers, and what a client needs
    control.find()                  # the same server, from any process of this host
    control.stop(drain_seconds=30)  # nothing of it is left; nothing there is fine

Nothing in a process's memory is needed to find a server or to stop it, so one whose starter was killed goes, too.
"""

from __future__ import annotations

from llm_pipeline.serving.control.endpoints import endpoint_of
from llm_pipeline.serving.control.opening import open_control
from llm_pipeline.serving.control.server import Candidate, ServerControl, StagedServer, StagingSlot

__all__ = ["Candidate", "ServerControl", "StagedServer", "StagingSlot", "endpoint_of", "open_control"]
