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


def is_guarded(store: ArtifactStore, target: str) -> bool:
    """Whether a guard looked at the target lately; a sign from the future, or one that is none of ours, is no sign."""
    document = store.read_document(_name(target))
    if document is None:
        return False
    try:
        seconds = time.time() - GuardSign.model_validate(document.value).at
    except ValidationError:
        return False
    return 0.0 <= seconds <= RECENT_SECONDS


def _name(target: str) -> str:
    return f"guards/{target}.json"
