"""The guard's sign of life: a controller leaves its canary to the guard only if the guard runs."""

from __future__ import annotations

import contextlib
import time

from pydantic import ValidationError

from llm_pipeline.base.records import Frozen
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict

RECENT_SECONDS = 900.0
"""A guard whose last sign is older than this counts as not running."""


class Sighting(Frozen):
    """How the guard found a canary, and since when it finds it so.

    Attributes:
        found: Changes with everything that a living controller writes.
        boot: The guard's host, and its boot.
        since: Seconds since that boot.
        since_wall: The same moment in seconds since 1970, for a guard that has moved to another host.
    """

    found: str
    boot: str
    since: float
    since_wall: float


class GuardSign(Frozen):
    """When the guard began its last pass over a target, in seconds since 1970, and what it found.

    Attributes:
        sighting: Of the canary that had not ended; None when there was none.
    """

    at: float
    sighting: Sighting | None = None


def leave_sign(store: ArtifactStore, target: str, sign: GuardSign) -> None:
    """Record that the guard checks a target now; of two guards at a time, one records it."""
    document = store.read_document(_name(target))
    revision = document.revision if document else None
    with contextlib.suppress(Conflict):
        store.write_document(_name(target), sign.model_dump(), revision)


def read_sign(store: ArtifactStore, target: str) -> GuardSign | None:
    """The guard's last sign; None if there is none, or if it cannot be read."""
    document = store.read_document(_name(target))
    try:
        return GuardSign.model_validate(document.value) if document is not None else None
    except ValidationError:
        return None


def is_guarded(store: ArtifactStore, target: str) -> bool:
    """Whether a guard looked at the target lately; its host's clock may differ, but not by more than that."""
    sign = read_sign(store, target)
    return sign is not None and abs(time.time() - sign.at) <= RECENT_SECONDS


def _name(target: str) -> str:
    return f"guards/{target}.json"
