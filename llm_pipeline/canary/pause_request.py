"""A person's pause of a running canary: a document in the store that its controller reads before each turn.

The controller stays and watches on. So what is paused keeps its split and is still judged, by the same tests: a
candidate that harms users is rolled back; a step that passes does not end. A pause belongs to one attempt of a canary
and is kept by whoever continues it.
"""

from __future__ import annotations

from datetime import UTC, datetime

from llm_pipeline.base.records import Frozen
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.documents import understood


class PauseRequest(Frozen):
    """What a person asked for. Times are seconds since 1970.

    Attributes:
        attempt: When the attempt began that it belongs to, as in `CanaryRecord.began_at`.
        by: Who paused it.
        why: In the person's words; may be empty.
        deadline_seconds: Paused for longer, it is rolled back: a forgotten canary must not keep its users for ever.
        resumed_at: None while it is paused.
        resumed_by: Who resumed it.
    """

    attempt: float
    by: str
    why: str = ""
    since: float
    deadline_seconds: float
    resumed_at: float | None = None
    resumed_by: str = ""

    def holds(self, attempt: float) -> bool:
        """Whether an attempt is paused by it."""
        return self.resumed_at is None and self.attempt == attempt

    def over(self, now: float) -> bool:
        """Whether it has lasted too long."""
        return now - self.since > self.deadline_seconds

    def words(self) -> str:
        """Who paused it and what becomes of it, for logs and people."""
        why = f" ({self.why})" if self.why else ""
        return f"{self.by} paused it{why}; rolled back if nobody resumes it within {self.deadline_seconds:.0f} s"


class StandingPause(Frozen):
    """Why a canary does not go on now. Times are seconds since 1970.

    Attributes:
        by: The person who paused it; empty where its controller did.
        why: In that person's words, or the controller's reason; may be empty.
        until: It is rolled back then, unless somebody resumes it or answers.
    """

    place: str
    by: str
    why: str
    since: float
    until: float

    def __str__(self) -> str:
        by = f" by {self.by}" if self.by else ""
        why = f" ({self.why})" if self.why else ""
        return f"paused{by} since {utc(self.since)}{why}; rolled back at {utc(self.until)} unless somebody acts"


def utc(at: float) -> str:
    """Seconds since 1970 as people read them."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def pause_name(release_id: str, target: str) -> str:
    """Name of the document of a canary's pause."""
    return f"releases/{release_id}/pauses/{target}.json"


def read_pause(store: ArtifactStore, release_id: str, target: str) -> PauseRequest | None:
    """The latest pause of a release's canaries on a target, ended or not; None before the first."""
    name = pause_name(release_id, target)
    document = store.read_document(name)
    return understood(PauseRequest, document.value, name) if document else None
