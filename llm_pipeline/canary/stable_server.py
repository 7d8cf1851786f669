"""Before traffic goes to a server, it must answer: a way back to a dead one would lose every request."""

from __future__ import annotations

import time

from llm_pipeline.base.errors import Fenced, PipelineError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.router import SlotName, other_slot
from llm_pipeline.canary.slots import SlotControl
from llm_pipeline.serving.slot_fence import FencingToken

log = get_logger(__name__)

_PAUSE_SECONDS = 0.5


class NoWayBack(Transient):
    """The server to go back to does not answer and cannot be made to; nothing was stopped."""


def have_answering(
    slots: SlotControl, slot: SlotName, repository: ArtifactRef | None, token: FencingToken, *, seconds: float
) -> bool:
    """Have a slot's server answer a generation: one that has ended is started, one that hangs is restarted.

    A server that is running but gives no answer is left alone if the other slot gives none either: the host may be
    busy, and ending its production would make that worse.

    Args:
        slots: The target's slots.
        slot: Where traffic is to go.
        repository: What must serve there; None when nobody knows: then it can be asked but not started.
        token: Shown to the slots.
        seconds: How long an answer is waited for.

    Returns:
        Whether it was started now.

    Raises:
        NoWayBack: It does not answer, and could not be started.
        Fenced: Somebody else took the slots over.
    """
    running = slots.alive(slot)
    if running and _answers(slots, slot, seconds):
        return False
    if running and not slots.answers(other_slot(slot)):
        log.warning("neither server answers; the one to go back to is left running", slot=slot)
        return False
    state = "is running but gives no answer" if running else "has ended"
    log.warning(f"the server to go back to {state}: restarting it", slot=slot)
    if repository is None:
        raise NoWayBack(f"the server in {slot} {state}, and what it served is unknown", hint="start it by hand")
    if running:
        slots.stop(slot, repository, token)
    _start(slots, slot, repository, token, seconds)
    return True


def _start(slots: SlotControl, slot: SlotName, repository: ArtifactRef, token: FencingToken, seconds: float) -> None:
    hint = "see the server's log; the same call is safe again"
    try:
        slots.ensure(slot, repository, token)
    except Fenced:
        raise
    except PipelineError as error:
        raise NoWayBack(f"the server in {slot} does not start: {error}", where=str(repository), hint=hint) from error
    if not _answers(slots, slot, seconds):
        raise NoWayBack(f"the server in {slot} was started and gives no answer", where=str(repository), hint=hint)


def _answers(slots: SlotControl, slot: SlotName, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while slots.alive(slot):
        if slots.answers(slot):
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(min(_PAUSE_SECONDS, seconds / 4))
    return False
