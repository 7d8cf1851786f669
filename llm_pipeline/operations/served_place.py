"""A place: its router, its slots, what its documents say of it now, and the fence of every act on it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from llm_pipeline.base.errors import ConfigError, Fenced, PipelineError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.quantities import duration
from llm_pipeline.canary.record import LEASE_SECONDS, CanaryRecord, Phase, lease_name
from llm_pipeline.canary.router import Patience, SlotName, TrafficRouter, all_to, open_router, router_as_it_is
from llm_pipeline.canary.slots import ServedPlace, slots_of
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict
from llm_pipeline.store.lease import Lease, LeaseHeld, LeaseLost
from llm_pipeline.store.place_state import Pointer, read_place

log = get_logger(__name__)

T = TypeVar("T")
_TRIES = 5
_LONGEST_PAUSE_SECONDS = 0.5


class PlaceBusy(LeaseHeld):
    """Somebody else acts on the place now."""


@contextmanager
def acting(store: ArtifactStore, place: str) -> Iterator[Lease]:
    """Hold the lease of a place's canary, like whoever releases or rolls back there.

    Raises:
        PlaceBusy: Somebody else holds it; a rollback does not wait and takes it over instead.
    """
    try:
        with Lease(store, lease_name(place), seconds=LEASE_SECONDS) as lease:
            yield lease
    except PlaceBusy:
        raise
    except LeaseHeld as error:
        hint = "wait until it is done; a server that ended meanwhile is started by `llm-pipeline guard`"
        raise PlaceBusy(f"somebody is moving the traffic of {place} now: {error.message}", hint=hint) from error


def despite_others(attempt: Callable[[], T], meanwhile: Callable[[], object] = lambda: None) -> T:
    """Try again when somebody wrote at the same moment, after a random pause so that two do not meet again.

    Args:
        attempt: Safe to repeat.
        meanwhile: Called after each pause.
    """
    for _ in range(_TRIES - 1):
        try:
            return attempt()
        except (Fenced, Conflict, LeaseHeld, LeaseLost) as error:
            log.warning("a concurrent write got there first, trying again", reason=str(error))
        time.sleep(random.uniform(0.0, _LONGEST_PAUSE_SECONDS))  # noqa: S311 - no secret
        meanwhile()
    return attempt()


def is_moving(record: CanaryRecord | None, production: Pointer) -> bool:
    """Whether a canary may have traffic: it has not ended, or it was promoted and is not settled yet."""
    if record is None or record.phase is Phase.ROLLED_BACK:
        return False
    return record.phase is not Phase.PROMOTED or record.production_since == production.promoted_at


RECENT_SECONDS = 900.0
"""A guard whose last heartbeat is older than this counts as not running."""


def last_heard(store: ArtifactStore, target: str) -> float | None:
    """How many seconds ago a guard checked the target, or its clock is ahead of ours; None if none ever did."""
    guarded_at = read_place(store, target).guarded_at
    return None if guarded_at is None else abs(time.time() - guarded_at)


def is_recent(heard_seconds: float | None) -> bool:
    """Whether a guard that was heard so many seconds ago runs."""
    return heard_seconds is not None and heard_seconds <= RECENT_SECONDS


def last_pass(heard_seconds: float | None) -> str:
    """When a guard checked a target, in the words of every view."""
    if heard_seconds is None:
        return "never ran here"
    return f"ran {duration(heard_seconds)} ago{'' if is_recent(heard_seconds) else ': it is not running'}"


def require_place_of(deployment: Deployment, place: str) -> None:
    """Refuse a place that the deployment does not have.

    Raises:
        ConfigError: It has none of that name.
    """
    if place not in deployment.places:
        known = ", ".join(deployment.places) or "none"
        raise ConfigError(f"deployment {deployment.name} has no place {place!r}", hint=f"its places: {known}")


def place_as_it_is(store: ArtifactStore, deployment: Deployment, model_id: str, target: str) -> ServedPlace:
    """A deployment's place with its router as it is, running or not: nothing is started by looking for it.

    Raises:
        ConfigError: The deployment has no such place.
    """
    require_place_of(deployment, target)
    patience = Patience.with_router(deployment.places[target].router)
    slots = slots_of(store, deployment, target)
    return ServedPlace(store, model_id, target, router_here(deployment, target), slots, patience)


def place_with_router(store: ArtifactStore, deployment: Deployment, model_id: str, target: str) -> ServedPlace:
    """A deployment's place with its router started, if it can be; see `place_as_it_is`.

    Without production none ever ran; one that cannot be started takes its routes up when it comes back.
    """
    place = place_as_it_is(store, deployment, model_id, target)
    production = read_place(store, target).of(model_id).production
    if production is not None:
        try:
            return replace(place, router=start_router(deployment, target, production.slot))
        except PipelineError as error:
            log.warning("the router cannot be started", reason=str(error))
    return place


def router_here(deployment: Deployment, target: str) -> TrafficRouter | None:
    """The router of a place as it is, running or not; None where none ever ran."""
    place = deployment.places[target]
    return router_as_it_is(place.router, place.slots, _router_state(deployment, target))


def start_router(deployment: Deployment, target: str, production: SlotName) -> TrafficRouter:
    """The router of a place, started where it is ours; one that has no routes yet sends all traffic to production.

    Raises:
        PipelineError: It cannot be started.
    """
    place, initial = deployment.places[target], all_to(production, owner="production", epoch=0)
    return open_router(place.router, place.slots, _router_state(deployment, target), initial=initial)


def _router_state(deployment: Deployment, target: str) -> Path:
    return Path(deployment.state_root) / target / "router"
