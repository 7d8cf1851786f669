"""Where a model is served on a target: its router, its slots, and what its documents say of it now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from llm_pipeline.base.errors import ConfigError, PipelineError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.canary.moving import Site
from llm_pipeline.canary.open_router import open_router, router_as_it_is
from llm_pipeline.canary.openai_slots import slots_of
from llm_pipeline.canary.patience import Patience
from llm_pipeline.canary.record import CanaryRecord, Phase, latest_canary, read_canary_record
from llm_pipeline.canary.router import SlotName, TrafficRouter, all_to, other_slot
from llm_pipeline.canary.slots import SlotControl, slot_servers
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.place_state import PlaceState, Pointer, read_place
from llm_pipeline.store.references import model_of_release

log = get_logger(__name__)


@dataclass(frozen=True)
class ServedPlace:
    """Where a model is served on a target.

    Attributes:
        find_router: Finds the target's router, or starts it; it says None where none ever ran.
        patience: How long each part of a rollback is tried.
    """

    store: ArtifactStore
    model_id: str
    target: str
    find_router: Callable[[], TrafficRouter | None]
    slots: SlotControl
    patience: Patience

    @cached_property
    def router(self) -> TrafficRouter | None:
        """The router, found when it is needed first."""
        return self.find_router()

    @property
    def site(self) -> Site:
        """What a move of traffic there acts on."""
        return Site(self.router, self.slots, self.patience)


def place_as_it_is(store: ArtifactStore, deployment: Deployment, model_id: str, target: str) -> ServedPlace:
    """A deployment's place with its router as it is, running or not: nothing is started by looking for it."""
    return _place(store, deployment, model_id, target, lambda: router_here(deployment, target))


def place_with_router(store: ArtifactStore, deployment: Deployment, model_id: str, target: str) -> ServedPlace:
    """A deployment's place with its router started, if it can be; see `place_as_it_is`.

    Without production none ever ran; one that cannot be started takes its routes up when it comes back.
    """

    def started() -> TrafficRouter | None:
        production = read_place(store, target).production
        if production is not None:
            try:
                return start_router(deployment, target, production.slot)
            except PipelineError as error:
                log.warning("the router cannot be started", reason=str(error))
        return router_here(deployment, target)

    return _place(store, deployment, model_id, target, started)


def _place(
    store: ArtifactStore,
    deployment: Deployment,
    model_id: str,
    target: str,
    find_router: Callable[[], TrafficRouter | None],
) -> ServedPlace:
    patience = Patience.with_router(deployment.places[target].router)
    return ServedPlace(store, model_id, target, find_router, slots_of(store, deployment, target), patience)


def router_here(deployment: Deployment, target: str) -> TrafficRouter | None:
    """The router of a place as it is, running or not; None where none ever ran."""
    place = deployment.places[target]
    return router_as_it_is(place.router, slot_servers(place), _router_state(deployment, target))


def start_router(deployment: Deployment, target: str, production: SlotName) -> TrafficRouter:
    """The router of a place, started where it is ours; one that has no routes yet sends all traffic to production.

    Raises:
        PipelineError: It cannot be started.
    """
    place, initial = deployment.places[target], all_to(production, owner="production", epoch=0)
    return open_router(place.router, slot_servers(place), _router_state(deployment, target), initial=initial)


def _router_state(deployment: Deployment, target: str) -> Path:
    return Path(deployment.state_root) / target / "router"


def on_trial(place: ServedPlace, state: PlaceState) -> CanaryRecord | None:
    """The canary that has not ended, or whose promotion is not settled yet.

    Raises:
        ConfigError: It is another model's.
    """
    record = read_canary_record(place.store, state.on_trial, place.target) if state.on_trial else None
    production = state.production
    if record is None or (production is not None and production.release_id == record.release_id):
        return None
    since = production.promoted_at if production is not None else None
    unsettled = record.phase is Phase.PROMOTED and record.production_since == since
    if record.settled and record.traffic_confirmed is not False and not unsettled:
        return None
    model = model_of_release(place.store, record.release_id)
    if model not in (None, place.model_id):
        hint = f"roll back {model} instead"
        raise ConfigError(f"release {record.release_id} of {model} is on trial on {place.target}", hint=hint)
    return record


def newest(trial: CanaryRecord | None, production: Pointer | None) -> str:
    """The release that a rollback without a name leaves; empty when there is none."""
    return trial.release_id if trial is not None else production.release_id if production is not None else ""


def left_for(place: ServedPlace, production: Pointer) -> str | None:
    """The release that was taken back last, if this production is there because of that."""
    record = latest_canary(place.store, place.target)
    ended = record is not None and record.phase is Phase.ROLLED_BACK
    if record is not None and ended and record.production_since == production.promoted_at:
        return record.release_id
    last = read_place(place.store, place.target).way_back
    served = last is not None and last.to == production.release_id and production.promoted_at >= last.asked_at
    return last.left if last is not None and served else None


def free_slot(previous: Pointer, production: Pointer) -> SlotName:
    """The previous release's own slot; never the one that serves production now."""
    return previous.slot if previous.slot != production.slot else other_slot(production.slot)
