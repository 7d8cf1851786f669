"""What a person was asked about a release, and answered: documents of the release."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

from pydantic import Field

from llm_pipeline.base.records import Frozen
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.signed_documents import replace_document

Answer = Literal["waiting", "approved", "denied", "timed out", "ended"]


class Decision(Frozen):
    """A question about a step, and its answer. Times are seconds since 1970.

    Attributes:
        run: The run of the release that it belongs to: when that was resolved.
        targets: What it is about.
        question: The question, on one line; empty where a person ended the run unasked.
        taken: Of the targets, those that a person took; empty for all of them.
        evidence: SHA-256 of the question as the person saw it, with the verdicts of the gates.
        amounts: What was to be spent; see `Question`.
        asked_at: None when it was answered before it was asked.
        by: Who answered; empty when the time to answer ran out.
    """

    run: str
    step: str
    targets: tuple[str, ...]
    question: str
    evidence: str
    taken: tuple[str, ...] = ()
    amounts: dict[str, float] = Field(default_factory=dict)
    asked_at: float | None = None
    answer: Answer = "waiting"
    answered_at: float | None = None
    by: str = ""

    @property
    def refused(self) -> bool:
        """Whether it ended the release."""
        return self.answer in ("denied", "timed out", "ended")

    def takes(self, target: str) -> bool:
        """Whether an approval is about a target."""
        return target in (self.taken or self.targets)

    @property
    def in_words(self) -> str:
        """E.g. `denied by anna, 2026-11-27 14:03 UTC`."""
        of = f" for {', '.join(self.taken)}" if self.taken else ""
        at = f", {datetime.fromtimestamp(self.answered_at, UTC):%Y-%m-%d %H:%M UTC}" if self.answered_at else ""
        return answer_in_words(self.answer, self.by) + of + at


def answer_in_words(answer: str, by: str) -> str:
    """`denied by anna`, `not answered in time`."""
    named = {"timed out": "not answered in time", "waiting": "waiting for an answer"}
    return f"{answer} by {by}" if by else named.get(answer, answer)


def note_ended(store: ArtifactStore, release_id: str, run: datetime, by: str) -> None:
    """Note that somebody ended a run of a release, which no step of it asked about."""
    ended = Decision(
        run=run.isoformat(), step="run", targets=(), question="", evidence="", answer="ended",
        answered_at=datetime.now(UTC).timestamp(), by=by,
    )  # fmt: skip
    replace_document(store, decision_name(release_id, "run"), ended.model_dump(mode="json"))


def decision_name(release_id: str, step: str) -> str:
    """Name of the document of a decision."""
    return f"releases/{release_id}/decisions/{step}.json"


def read_decisions(store: ArtifactStore, release_id: str) -> list[Decision]:
    """The questions of a release that were put or answered, each as it stands.

    Raises:
        IntegrityError: One is damaged.
    """
    names = store.list_documents(f"releases/{release_id}/decisions")
    return [found for name in names if (found := store.read_as(name, Decision)[0]) is not None]


def refusal(decisions: Iterable[Decision], run: datetime) -> Decision | None:
    """What a person refused, or nobody answered in time, in a run of a release; None while nothing is refused."""
    return next((one for one in decisions if one.refused and one.run == run.isoformat()), None)


def waiting(decisions: Iterable[Decision], run: datetime) -> Decision | None:
    """What a run of a release asks now; None while it asks nothing."""
    return next((one for one in decisions if one.answer == "waiting" and one.run == run.isoformat()), None)
