"""From a place in the configuration to the control of its server; only the kind that is used is imported."""

from __future__ import annotations

from llm_pipeline.base.adapters import adapter
from llm_pipeline.config.server_place import ServerPlace
from llm_pipeline.serving.control.server import ServerControl, StagingSlot


def open_control(place: ServerPlace, slot: StagingSlot) -> ServerControl:
    """The control of the server of a place; starts nothing and sends nothing."""
    control: ServerControl = adapter("server_controls", place.kind).open(place, slot)
    return control
