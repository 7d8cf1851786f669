"""The sign of life of the guard: who leaves a canary to it must know that it looks."""

from __future__ import annotations

import contextlib
import time

from pydantic import ValidationError

from llm_pipeline.stages.contract import Frozen
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict

RECENT_SECONDS = 900.0
"""A guard that was heard of longer ago guards nothing."""


class GuardSign(Frozen):
    """When the guard began its last pass over a target, in seconds since 1970."""

    at: float


def leave_sign(store: ArtifactStore, target: str) -> None:
    """Note that the guard looks at a target now; two guards at a time leave one sign."""
    document = store.read_document(_name(target))
    revision = document.revision if document else None
    with contextlib.suppress(Conflict):
        store.write_document(_name(target), GuardSign(at=time.time()).model_dump(), revision)


def seconds_since_sign(store: ArtifactStore, target: str) -> float | None:
    """How long ago the guard looked at a target; None when it never did. A sign from the future is none."""
    document = store.read_document(_name(target))
    try:
        seconds = time.time() - GuardSign.model_validate(document.value).at if document else -1.0
    except ValidationError:
        return None
    return seconds if seconds >= 0.0 else None


def is_guarded(store: ArtifactStore, target: str) -> bool:
    """Whether a guard looks at the target again and again."""
    seconds = seconds_since_sign(store, target)
    return seconds is not None and seconds <= RECENT_SECONDS


def _name(target: str) -> str:
    return f"guards/{target}.json"
