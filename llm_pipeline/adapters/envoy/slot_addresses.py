"""Where Envoy finds the servers of the slots."""

from __future__ import annotations

from llm_pipeline.canary.arm_names import Protocol
from llm_pipeline.config.slot_server import OpenAiSlot, SlotServer


def addresses_of(server: SlotServer, host: str) -> dict[Protocol, tuple[str, int]]:
    """Host and port by protocol; `host` is where the ports of a Triton are."""
    if isinstance(server, OpenAiSlot):
        return {"http": server.address}
    return {"http": (host, server.http), "grpc": (host, server.grpc)}
