"""What several stages are given: a place's servers, and what is served."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_pipeline.config.endpoint import Endpoint

if TYPE_CHECKING:
    from llm_pipeline.release_progress import ReleaseProgress
    from llm_pipeline.serving.kubernetes_manifests import ServedRelease

GOLDEN_MAXIMUM_TOKENS = 32
"""Output limit of the golden answers."""


def server_slot(flow: ReleaseProgress, target: str) -> dict[str, Any]:
    """Fields of `ServerSlotConfig`."""
    from llm_pipeline.serving.control import StagingSlot

    place, state = flow.place(target).staging, Path(flow.state_directory(target, "staging"))
    slot = StagingSlot(state, flow.release.name, flow.target(target))
    if place.is_process_here:
        software = server_software(flow, target)
        slot = replace(slot, triton_home=Path(software["triton_home"]), python=Path(software["python"]))
    return {"place": place, "slot": slot}


def server_software(flow: ReleaseProgress, target: str) -> dict[str, Any]:
    """What servers of this host run."""
    deployment = flow.deployment
    python = deployment.interpreter(deployment.places[flow.record.place_of(target)].environment)
    return {"triton_home": deployment.triton_home, "python": python}


def served_release(flow: ReleaseProgress, target: str) -> ServedRelease:
    """What pods serve of a packaged release: its artifacts by name."""
    from llm_pipeline.serving.kubernetes_manifests import ServedRelease

    return ServedRelease(
        name=flow.release.name,
        release_id=flow.record.release_id,
        model_id=flow.record.model.id,
        target=flow.target(target),
        repository=flow.artifact("package", target, "repository"),
        engine=flow.artifact("build", target, "engine"),
        checkpoint=flow.artifact("quantize", flow.chosen_recipe(target), "checkpoint"),
    )


def staging_endpoint(flow: ReleaseProgress, target: str) -> Endpoint:
    """Where the staged candidate answers."""
    from llm_pipeline.engines.builder import own_server_of
    from llm_pipeline.serving.control import endpoint_of

    place, served = flow.place(target).staging, flow.target(target)
    own = own_server_of(served)
    metrics = own.metrics_path if own is not None else ""
    return endpoint_of(place, release_name=flow.release.name, target_name=served.name, own_metrics=metrics)
