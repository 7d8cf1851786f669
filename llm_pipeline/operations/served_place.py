"""A deployment's place as the rollback has it: its router, started if it can be, its slots, and how long to wait."""

from __future__ import annotations

from pathlib import Path

from llm_pipeline.base.errors import ConfigError, PipelineError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.canary.open_router import open_router, router_as_it_is
from llm_pipeline.canary.open_slots import slots_of
from llm_pipeline.canary.patience import Patience
from llm_pipeline.canary.router import TrafficRouter, all_to
from llm_pipeline.canary.slots import slot_servers
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.operations.place_now import ServedPlace
from llm_pipeline.operations.rollback import roll_back
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.pointers import Pointers, read_pointers

log = get_logger(__name__)


def roll_back_at(
    store: ArtifactStore, deployment: Deployment, model_id: str, target: str, *, by: str, leaving: str = ""
) -> Pointers:
    """`roll_back`, at a place of a deployment.

    Raises:
        ConfigError: The deployment has no such place; see `roll_back`, too.
    """
    if target not in deployment.places:
        raise ConfigError(f"deployment {deployment.name} has no place for {target!r}", where=deployment.name)
    return roll_back(_place(store, deployment, model_id, target), by=by, leaving=leaving)


def place_as_it_is(store: ArtifactStore, deployment: Deployment, model_id: str, target: str) -> ServedPlace:
    """A deployment's place with its router as it is, running or not: nothing is started by looking for it."""
    place = deployment.places[target]
    state = Path(deployment.state_root) / target / "router"
    return ServedPlace(
        store=store,
        model_id=model_id,
        target=target,
        find_router=lambda: router_as_it_is(place.router, slot_servers(place), state),
        slots=slots_of(store, deployment, target),
        patience=Patience.with_router(place.router),
    )


def _place(store: ArtifactStore, deployment: Deployment, model_id: str, target: str) -> ServedPlace:
    place = deployment.places[target]
    return ServedPlace(
        store=store,
        model_id=model_id,
        target=target,
        find_router=lambda: _router(store, deployment, model_id, target),
        slots=slots_of(store, deployment, target),
        patience=Patience.with_router(place.router),
    )


def _router(store: ArtifactStore, deployment: Deployment, model_id: str, target: str) -> TrafficRouter | None:
    """Without production none ever ran; one that cannot be started takes its routes up when it comes back."""
    place, state = deployment.places[target], Path(deployment.state_root) / target / "router"
    production = read_pointers(store, model_id, target)[0].production
    if production is not None:
        initial = all_to(production.slot, owner="production", epoch=0)
        try:
            return open_router(place.router, slot_servers(place), state, initial=initial)
        except PipelineError as error:
            log.warning("the router cannot be started", reason=str(error))
    return router_as_it_is(place.router, slot_servers(place), state)
