"""An Envoy that runs already: it is fed through the directory that it watches, never started or stopped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from llm_pipeline.adapters.envoy.adapter import ExistingEnvoyPlace
from llm_pipeline.adapters.envoy.router import EnvoyRouter, RouterFiles
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.waiting import wait_until
from llm_pipeline.canary.router import RouterUnavailable, RouteState, SlotName
from llm_pipeline.config.slot_server import SlotServer

_POLL_SECONDS = 0.1


def feed_router(
    place: ExistingEnvoyPlace,
    slots: Mapping[SlotName, SlotServer],
    state: Path,
    *,
    initial: RouteState,
    wait_seconds: float = 15.0,
) -> EnvoyRouter:
    """Write its listener, clusters and certificate, routes if it has none, and wait until it acts on the routes.

    Args:
        place: Its directory and its admin interface.
        slots: The servers behind it.
        state: Directory for the lock of the routes and for `bootstrap.json`, which it can be started with.
        initial: Its routes, if it never had any.
        wait_seconds: Longest wait for its acknowledgement.

    Raises:
        ConfigError: The directory cannot be written.
        RouterUnavailable: It does not answer, or does not read the directory.
    """
    router = fed_router(place, slots, state)
    try:
        router.files.state.mkdir(parents=True, exist_ok=True)
        router.write_configuration(initial)
    except OSError as error:
        raise ConfigError(
            f"the directory of Envoy's configuration cannot be written: {error}",
            where=place.directory,
            hint="Envoy and the workers must see it at the same path, and the workers must own it",
        ) from error
    _wait_until_read(router, wait_seconds)
    return router


def fed_router(place: ExistingEnvoyPlace, slots: Mapping[SlotName, SlotServer], state: Path) -> EnvoyRouter:
    """The router without writing or asking anything."""
    files = RouterFiles(state.resolve(), xds=Path(place.directory), access_log=Path(place.access_log))
    return EnvoyRouter(files, place, dict(slots))


def _wait_until_read(router: EnvoyRouter, wait_seconds: float) -> None:
    revision = router.read()[1]
    if not wait_until(lambda: router.converged(revision) is True, wait_seconds, every=_POLL_SECONDS):
        raise RouterUnavailable(
            "Envoy does not act on the routes in its directory" if router.ready() else "Envoy does not answer",
            where=router.place.admin_url,
            hint=f"start it with --config-path {router.files.bootstrap}, or give it that dynamic_resources",
        )
