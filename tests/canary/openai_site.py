"""Envoy in front of two servers with OpenAI's API that run already."""

from __future__ import annotations

from pathlib import Path

from free_ports import free_ports
from openai_endpoint import golden_of
from openai_server import OpenAiDouble

from llm_pipeline.adapters.envoy.adapter import EnvoyPlace
from llm_pipeline.adapters.envoy.router import EnvoyRouter, start_router
from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.artifacts.golden import write_golden
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.router import SlotName, all_to
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.server_place import OpenAiSlot


def openai_slots(blue: str, green: str, **more: str) -> dict[SlotName, OpenAiSlot]:
    """Slots at two URLs."""
    urls: dict[SlotName, str] = {"blue": blue, "green": green}
    return {
        slot: OpenAiSlot(kind="openai", endpoint=Endpoint(url=url, openai_model="llm", **more))
        for slot, url in urls.items()
    }


def start_before(slots: dict[SlotName, OpenAiSlot], root: Path) -> EnvoyRouter:
    """Envoy with all traffic on blue; `stop_router(root / "router")` ends it."""
    port, admin = free_ports(2)
    place = EnvoyPlace(port=port, admin_port=admin)
    return start_router(place, slots, root / "router", initial=all_to("blue", owner="test", epoch=0))


def released(store: LocalStore, root: Path, server: OpenAiDouble) -> ArtifactRef:
    """The repository of a release whose golden answers are the server's."""
    directory = root / server.url.rpartition(":")[2]
    directory.mkdir()
    write_golden(directory, golden_of(server, 6, 4))
    (directory / "which").write_text(server.url)
    return store.publish("model_repository", directory)
