"""A tritonserver of this host, on loopback ports, in a session of its own."""

from __future__ import annotations

from llm_pipeline.adapters.local.adapter import LocalServer
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.serving.control import Candidate, StagedServer, StagingSlot
from llm_pipeline.serving.triton_server import RunningServer, find_server, start_server, stop_server


class LocalControl:
    """A Triton of this host, by `serving/triton_server`, which the slots of production use as well."""

    def __init__(self, place: LocalServer, slot: StagingSlot) -> None:
        self._place = place
        self._slot = slot

    def start(self, candidate: Candidate, *, wait_seconds: float) -> StagedServer:
        slot = self._slot
        if slot.triton_home is None or slot.python is None:
            raise ConfigError("a server of this host needs triton_home and an interpreter", where=str(slot.state))
        server = start_server(
            candidate.repository,
            self._place.ports,
            triton_home=slot.triton_home,
            python=slot.python,
            state=slot.state,
            digest=candidate.digest,
            links=candidate.links,
            wait_seconds=wait_seconds,
        )
        return _staged(server)

    def find(self) -> StagedServer | None:
        server = find_server(self._slot.state)
        return _staged(server) if server else None

    def stop(self, *, drain_seconds: float = 0) -> None:
        stop_server(self._slot.state, drain_seconds=drain_seconds)


def _staged(server: RunningServer) -> StagedServer:
    return StagedServer(server.endpoint, server.digest, server.ready_seconds)
