"""Waits for a server's requests to end before it is stopped: long generations take minutes, so there is a limit."""

from __future__ import annotations

import time
from dataclasses import dataclass

from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.patience import DrainLimit
from llm_pipeline.canary.router import SlotName, TrafficRouter
from llm_pipeline.canary.slots import SlotControl
from llm_pipeline.serving.slot_fence import FencingToken

log = get_logger(__name__)

LEFT_ALONE = "the slot now serves another repository: that server was left running"
_POLL_SECONDS = 0.05
_TOLD_SECONDS = 15.0


@dataclass(frozen=True)
class Retired:
    """What happened to a server that was to be stopped.

    Attributes:
        stopped: False when the slot serves something else by now, which was left alone.
        cut: Requests that were still in flight; None when nobody can tell.
    """

    stopped: bool
    cut: int | None

    def words(self, limit: DrainLimit) -> str:
        """What a person must know of it; empty when all went well."""
        cut = f"{self.cut} requests still in flight were cut after {limit.seconds:g} s" if self.cut else ""
        return cut if self.stopped else LEFT_ALONE


def retire(
    router: TrafficRouter | None,
    slots: SlotControl,
    slot: SlotName,
    repository: ArtifactRef,
    *,
    token: FencingToken,
    limit: DrainLimit,
) -> Retired:
    """Let requests in flight at a slot end, then stop its server of this repository.

    Raises:
        Fenced: Somebody else took the slots over meanwhile; nothing was stopped.
    """
    cut = _drain(router, slots, slot, limit) if slots.alive(slot) else 0
    retired = Retired(slots.stop(slot, repository, token), cut)
    if words := retired.words(limit):
        log.warning(words, slot=slot, repository=str(repository))
    return retired


def _drain(router: TrafficRouter | None, slots: SlotControl, slot: SlotName, limit: DrainLimit) -> int | None:
    """Wait until no request is in flight; returns how many still are at the limit, None if that is unknown."""
    began = told = time.monotonic()
    while (left := _in_flight(router, slots, slot)) != 0 and slots.alive(slot):
        now = time.monotonic()
        if now - began >= (limit.blind_seconds if left is None else limit.seconds):
            return left
        if now - told >= _TOLD_SECONDS:
            log.info("waiting for requests in flight", slot=slot, requests=left, limit_seconds=limit.seconds)
            told = now
        time.sleep(_POLL_SECONDS)
    return 0


def _in_flight(router: TrafficRouter | None, slots: SlotControl, slot: SlotName) -> int | None:
    """As the router counts them, or else the server itself."""
    counted = router.active_requests(slot) if router is not None else None
    return counted if counted is not None else slots.in_flight(slot)
