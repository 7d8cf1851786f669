"""The router of a target, by the kind of its place. Only the adapter that is used is imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from llm_pipeline.base.errors import Unsupported
from llm_pipeline.base.logging import get_logger
from llm_pipeline.canary.access_log import AccessLog
from llm_pipeline.canary.router import RouterUnavailable, RouteState, SlotName, TrafficRouter
from llm_pipeline.config.router_place import (
    AwsAlbPlace,
    EnvoyPlace,
    ExistingEnvoyPlace,
    GatewayApiPlace,
    IstioPlace,
    RouterPlace,
)
from llm_pipeline.config.server_ports import ServerPorts

log = get_logger(__name__)


def open_router(
    place: RouterPlace, slots: Mapping[SlotName, ServerPorts], state: Path, *, initial: RouteState
) -> TrafficRouter:
    """The router, started or told its first routes where that is ours to do.

    Args:
        place: What the router is, and where.
        slots: The servers behind it.
        state: Directory of what it keeps on this host: configuration, process record, logs, lock.
        initial: Routes of a router that never had any; others keep theirs.

    Raises:
        ConfigError: It cannot be started or used as its place says.
        RouterUnavailable: It does not answer.
    """
    match place:
        case EnvoyPlace():
            from llm_pipeline.adapters.envoy.process import start_router

            return start_router(place, slots, state, initial=initial)
        case ExistingEnvoyPlace():
            from llm_pipeline.adapters.envoy.existing import feed_router

            return feed_router(place, slots, state, initial=initial)
        case _:
            return _remote_router(place)


def router_as_it_is(place: RouterPlace, slots: Mapping[SlotName, ServerPorts], state: Path) -> TrafficRouter | None:
    """The router without starting or asking anything, for the way back; None where none ever ran.

    Its routes can be written all the same: those of an Envoy that is down are on disk when it comes back.
    """
    match place:
        case EnvoyPlace():
            from llm_pipeline.adapters.envoy.process import find_router, stopped_router

            return find_router(state) or stopped_router(state)
        case ExistingEnvoyPlace():
            from llm_pipeline.adapters.envoy.existing import fed_router

            return fed_router(place, slots, state)
        case _:
            return _remote_router(place)


def name_release(router: TrafficRouter | None, slot: SlotName, release_id: str) -> None:
    """Have the answers of a slot's server say which release gave them, where the router is an Envoy."""
    from llm_pipeline.adapters.envoy.router import EnvoyRouter

    if not isinstance(router, EnvoyRouter):
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
    from llm_pipeline.adapters.envoy.process import LARGEST_ACCESS_LOG_BYTES
    from llm_pipeline.adapters.envoy.router import EnvoyRouter

    if not isinstance(router, EnvoyRouter):
        raise Unsupported("this router keeps no record of single requests", hint="its analysis needs a metric source")
    largest = LARGEST_ACCESS_LOG_BYTES if isinstance(router.place, EnvoyPlace) else None
    return AccessLog(router.files.access_log, router.slot_of_address, reopen=router.reopen_log, largest_bytes=largest)


def _remote_router(place: GatewayApiPlace | IstioPlace | AwsAlbPlace) -> TrafficRouter:
    match place:
        case AwsAlbPlace():
            from llm_pipeline.adapters.aws.alb import AlbRouter

            return AlbRouter(place)
        case GatewayApiPlace():
            from llm_pipeline.adapters.gateway_api.router import GatewayApiRouter

            return GatewayApiRouter(place)
        case IstioPlace():
            from llm_pipeline.adapters.istio.router import IstioRouter

            return IstioRouter(place)
