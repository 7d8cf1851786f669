"""The slots of a place, by what serves there."""

from __future__ import annotations

from pathlib import Path

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.canary.openai_slots import OpenAiSlots
from llm_pipeline.canary.router import SlotName
from llm_pipeline.canary.slots import SlotControl, TritonSlots, slot_servers
from llm_pipeline.config.deployment import Deployment, TargetPlace
from llm_pipeline.config.slot_server import OpenAiSlot
from llm_pipeline.store.artifact_store import ArtifactStore

log = get_logger(__name__)


def openai_servers(place: TargetPlace) -> dict[SlotName, OpenAiSlot]:
    """The servers with OpenAI's API; none where the slots are Tritons of this host."""
    return {slot: server for slot, server in slot_servers(place).items() if isinstance(server, OpenAiSlot)}


def slots_of(store: ArtifactStore, deployment: Deployment, target: str) -> SlotControl:
    """The slots of a deployment's place; without an interpreter of the model's code servers can only be stopped."""
    place, state_root = deployment.places[target], Path(deployment.state_root)
    if servers := openai_servers(place):
        return OpenAiSlots(store, servers, target=target, state_root=state_root)
    try:
        python = Path(deployment.serving_interpreter(target))
    except ConfigError as error:
        log.warning("servers cannot be started from here", reason=str(error))
        python = None
    triton_home = Path(deployment.triton_home)
    return TritonSlots(store, place, target=target, state_root=state_root, triton_home=triton_home, python=python)
