"""Envoy as a router: one that is started here, and one that runs already."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from llm_pipeline.adapters.envoy.existing import fed_router, feed_router
from llm_pipeline.adapters.envoy.process import StartedEnvoy, find_router, start_router, stopped_router
from llm_pipeline.canary.router import RouterAdapter, SlotName
from llm_pipeline.config.router_place import EnvoyPlace, ExistingEnvoyPlace
from llm_pipeline.config.slot_server import SlotServer


def _as_it_is(_: EnvoyPlace, __: Mapping[SlotName, SlotServer], state: Path) -> StartedEnvoy | None:
    return find_router(state) or stopped_router(state)


STARTED = RouterAdapter(config=EnvoyPlace, open=start_router, as_it_is=_as_it_is)
EXISTING = RouterAdapter(config=ExistingEnvoyPlace, open=feed_router, as_it_is=fed_router)
