"""The fence of every act on a place: one at a time under its lease, with a token above all that were seen there."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from llm_pipeline.base.errors import Fenced
from llm_pipeline.base.logging import get_logger
from llm_pipeline.canary.record import LEASE_SECONDS, lease_name
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict
from llm_pipeline.store.lease import Lease, LeaseHeld, LeaseLost

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
