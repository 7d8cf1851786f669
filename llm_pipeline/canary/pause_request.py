"""A person's pause of a running canary: a document in the store that its controller reads before each turn.

The controller stays and watches on. So what is paused keeps its split and is still judged, by the same tests: a
candidate that harms users is rolled back; a step that passes does not end. A pause belongs to one attempt of a canary
and is kept by whoever continues it.
"""

from __future__ import annotations

from datetime import UTC, datetime

from llm_pipeline.base.host_time import HostTime
from llm_pipeline.base.records import Frozen
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.documents import understood


class PauseRequest(Frozen):
    """What a person asked for. Times are seconds since 1970.

    Attributes:
        attempt: When the attempt began that it belongs to, as in `CanaryRecord.began_at`.
        by: Who paused it.
        began: Since when it counts on the host of whoever goes by it.
        why: In the person's words; may be empty.
        deadline_seconds: Paused for longer, it is rolled back: a forgotten canary must not keep its users for ever.
        resumed_at: None while it is paused.
        resumed_by: Who resumed it.
    """

    attempt: float
    by: str
    why: str = ""
    since: float
    began: HostTime
    deadline_seconds: float
    resumed_at: float | None = None
    resumed_by: str = ""

    def holds(self, attempt: float) -> bool:
        """Whether an attempt is paused by it."""
        return self.resumed_at is None and self.attempt == attempt

    def over(self, now: HostTime) -> bool:
        """Whether it has lasted too long; a clock that is set does not change that."""
        return now.seconds_since(self.began) > self.deadline_seconds

    def seen_by(self, now: HostTime, known: PauseRequest | None) -> PauseRequest:
        """The same, timed on the controller's host: the person who asked may sit at one with another clock.

        Args:
            now: When the controller reads it.
            known: As the controller knew it until now.
        """
        if known is not None and known.model_copy(update={"began": self.began}) == self:
            return known
        same_host = self.began.boot == now.boot
        return self if same_host else self.model_copy(update={"began": now})

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
