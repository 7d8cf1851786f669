"""Envoy in front of two servers with OpenAI's API that run already."""

from __future__ import annotations

from pathlib import Path

from canary_site import free_ports

from llm_pipeline.adapters.envoy.process import start_router
from llm_pipeline.adapters.envoy.router import EnvoyRouter
from llm_pipeline.canary.router import SlotName, all_to
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.router_place import EnvoyPlace
from llm_pipeline.config.slot_server import OpenAiSlot


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
