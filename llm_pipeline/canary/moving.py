"""Moving all traffic: written until the router takes it, confirmed where it tells, to a server that it reaches."""

from __future__ import annotations

import time
from collections.abc import Callable

from llm_pipeline.base.logging import get_logger
from llm_pipeline.canary.patience import Patience
from llm_pipeline.canary.router import RouterRejected, RouterUnavailable, RouteState, SlotName, TrafficRouter

log = get_logger(__name__)

_FIRST_PAUSE_SECONDS = 0.1
_LARGEST_PAUSE_SECONDS = 5.0
_POLL_SECONDS = 0.05
_STEADY_SECONDS = 2.0
"""Longer than the router's health checks are apart."""


def traffic_to(router: TrafficRouter, want: RouteState, patience: Patience) -> bool:
    """Write the routes whatever they held; returns whether the data plane confirmed them.

    Raises:
        RouterUnavailable: The routes could not be written for `patience.write` seconds.
        Fenced: A newer owner moved the traffic meanwhile.
    """
    revision = _write_with_retries(router, want, patience.write)
    confirmed = wait_converged(router, revision, patience.confirm)
    if not confirmed:
        log.warning("the router did not confirm the routes; they are on disk", revision=revision)
    return confirmed


def wait_converged(router: TrafficRouter, revision: str, seconds: float) -> bool:
    """Wait until the data plane acts on a revision; False when it did not, or refused it."""

    def converged() -> bool:
        return router.converged(revision) is True

    try:
        return wait(converged, seconds)
    except RouterRejected as error:
        log.error("the router refused the routes", reason=str(error))  # noqa: TRY400 - nothing to trace
        return False


def wait_usable(router: TrafficRouter, slot: SlotName, seconds: float) -> bool:
    """Wait until the router accepts the slot and goes on to; a router that cannot tell is taken at its word.

    A server that is started soon after another one stopped at its address is accepted by the checks of before, refused
    by the next ones, and accepted again: so it must be accepted for longer than checks are apart.
    """
    accepted_since: float | None = None

    def steady() -> bool:
        nonlocal accepted_since
        if router.usable(slot) is False:
            accepted_since = None
            return False
        now = time.monotonic()
        accepted_since = now if accepted_since is None else accepted_since
        return now - accepted_since >= _STEADY_SECONDS

    return wait(steady, seconds)


def _write_with_retries(router: TrafficRouter, want: RouteState, seconds: float) -> str:
    deadline, pause = time.monotonic() + seconds, _FIRST_PAUSE_SECONDS
    while True:
        try:
            return router.write(want, None)
        except RouterUnavailable as error:
            if time.monotonic() >= deadline:
                raise
            log.warning("cannot write the routes, trying again", reason=str(error))
        time.sleep(pause)
        pause = min(2 * pause, _LARGEST_PAUSE_SECONDS)


def wait(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until something is so; returns whether it came to be."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
