"""The router of a target, by the kind of its place. Only the adapter that is used is imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from llm_pipeline.base.adapters import adapter
from llm_pipeline.base.errors import Unsupported
from llm_pipeline.base.logging import get_logger
from llm_pipeline.canary.access_log import AccessLog
from llm_pipeline.canary.router import NamesReleases, RouterUnavailable, RouteState, SlotName, TrafficRouter
from llm_pipeline.canary.router_adapter import RouterAdapter
from llm_pipeline.config.router_place import RouterPlace
from llm_pipeline.config.server_place import SlotServer

log = get_logger(__name__)


@runtime_checkable
class LogsRequests(Protocol):
    """A router that logs single requests."""

    def access_log(self) -> AccessLog:
        """That record."""


def open_router(
    place: RouterPlace, slots: Mapping[SlotName, SlotServer], state: Path, *, initial: RouteState
) -> TrafficRouter:
    """Open the router; one of this package is started, or given its first routes.

    Args:
        place: What the router is, and where.
        slots: The servers behind it.
        state: Directory of what it keeps on this host: configuration, process record, logs, lock.
        initial: Routes of a router that never had any; others keep theirs.

    Raises:
        ConfigError: It cannot be started or used as its place says.
        RouterUnavailable: It does not answer.
    """
    return _adapter(place).open(place, slots, state, initial=initial)


def router_as_it_is(place: RouterPlace, slots: Mapping[SlotName, SlotServer], state: Path) -> TrafficRouter | None:
    """The router for a rollback, without starting or asking anything; None if none ever ran.

    Routes can be written even while an Envoy is down: it reads them from disk when it starts.
    """
    return _adapter(place).as_it_is(place, slots, state)


def name_release(router: TrafficRouter | None, slot: SlotName, release_id: str) -> None:
    """Name the release in the headers of a slot's answers, if the router can."""
    if not isinstance(router, NamesReleases):
        return
    try:
        router.name_release(slot, release_id)
    except RouterUnavailable as error:
        log.warning("answers do not name the release that gave them", slot=slot, reason=str(error))


def access_log_of(router: TrafficRouter) -> AccessLog:
    """The router's record of requests, one by one.

    Raises:
        Unsupported: It keeps none.
    """
    if not isinstance(router, LogsRequests):
        raise Unsupported(
            "this router keeps no record of single requests", hint="name a metric source for its analysis"
        )
    return router.access_log()


def _adapter(place: RouterPlace) -> RouterAdapter:
    found: RouterAdapter = adapter("routers", place.kind)
    return found
