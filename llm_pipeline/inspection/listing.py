"""`llm-pipeline ls`: what a store holds, one table a kind of thing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from llm_pipeline.base.errors import PipelineError
from llm_pipeline.base.quantities import byte_size
from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.inspection.release_artifacts import DamagedRow, results_in_order, standing_pauses
from llm_pipeline.inspection.table import readable_time, titled_columns
from llm_pipeline.release.candidate import is_trial
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.decision import Decision, read_decisions, refusal
from llm_pipeline.release.flow import clears_up
from llm_pipeline.release.record import read_release_record
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.store.artifact_store import ArtifactStore, StoredArtifact
from llm_pipeline.store.references import readable_pointers, release_ids

_READERS = 8


class ReleaseRow(Frozen):
    """A release.

    Attributes:
        verdict: GO once it was settled, else that of the gate that stopped it, `denied`, `timed out` or `ended` where a
            person did; empty while it is open.
        reached: The stage, with its subject, that ran last.
        serves: The pointers that name it.
        pauses: Its canaries that are paused.
    """

    release_id: str
    config: str
    model: str
    commit: str
    resolved_at: datetime
    verdict: str
    reached: str
    serves: tuple[str, ...]
    pauses: tuple[str, ...] = ()


class ArtifactRow(Frozen):
    """An artifact; `problem` says why its manifest cannot be read."""

    artifact: ArtifactRef
    bytes: int | None = None
    files: int | None = None
    made_by: str = ""
    release_id: str = ""
    published_at: datetime
    problem: str = ""


@dataclass(frozen=True)
class Listing:
    """How one kind of thing is listed.

    Attributes:
        rows: Reads them; a `DamagedRow` stands for each that cannot be read.
        columns: Title and text of each column.
        right: Titles of the columns with numbers.
    """

    rows: Callable[[ArtifactStore], Sequence[Frozen]]
    columns: Mapping[str, Callable[[Any], str]]
    right: Collection[str] = ()

    def table(self, rows: Sequence[Frozen]) -> list[str]:
        """The rows as aligned lines."""
        whole = [row for row in rows if not isinstance(row, DamagedRow)]
        cells = [[text(row) for text in self.columns.values()] for row in whole]
        lines = titled_columns(list(self.columns), cells, right=self.right) if whole else []
        return lines + [str(row) for row in rows if isinstance(row, DamagedRow)]


def is_damaged(row: Frozen) -> bool:
    """Whether a row stands for something that cannot be read."""
    return isinstance(row, DamagedRow) or (isinstance(row, ArtifactRow) and row.problem != "")


def release_rows(store: ArtifactStore) -> list[ReleaseRow | DamagedRow]:
    """The releases, newest first."""
    serves: dict[str, list[str]] = {}
    pointers, unreadable = readable_pointers(store)
    for reference in pointers:
        serves.setdefault(reference.pointer.release_id, []).append(f"{reference.name} {reference.target}")
    pauses, unclear = standing_pauses(store)
    rows, damaged = [], [*(DamagedRow.of(one) for one in unreadable), *unclear]
    for name in release_ids(store):
        try:
            flow = ReleaseProgress(store, read_release_record(store, name))
            now = {"serves": tuple(serves.get(name, ())), "pauses": tuple(pauses.get(name, ()))}
            rows.append(release_row(flow, results_in_order(flow), read_decisions(store, name)).model_copy(update=now))
        except PipelineError as error:
            damaged.append(DamagedRow(document=f"releases/{name}", problem=str(error)))
    return [*sorted(rows, key=lambda row: row.resolved_at, reverse=True), *damaged]


def release_row(flow: ReleaseProgress, results: Sequence[StageResult], decisions: Sequence[Decision]) -> ReleaseRow:
    """A release as its own results, in the order they ran, say: without what serves and what is paused."""
    refused = refusal(decisions, flow.resolved_at)
    working = [result for result in results if not clears_up(result.stage)]
    return ReleaseRow(
        release_id=flow.record.release_id,
        config=flow.release.name,
        model=flow.record.model.id,
        commit=flow.record.model.commit,
        resolved_at=flow.resolved_at,
        verdict=_last_word(results) or (refused.answer if refused else ""),
        reached=f"{working[-1].stage} {working[-1].subject}".strip() if working else "",
        serves=(),
    )


def _last_word(results: Sequence[StageResult]) -> str:
    """A recipe, or a candidate, that failed its gate does not decide when another one was chosen."""
    for result in reversed(results):
        if result.stage == "settle":
            return Verdict.GO.value
        aside = result.stage == "accuracy" or is_trial(result.stage, result.subject)
        if result.judgement is not None and not aside and result.judgement.verdict is not Verdict.GO:
            return result.judgement.verdict.value
    return ""


def artifact_rows(store: ArtifactStore) -> list[ArtifactRow]:
    """The complete artifacts by kind, newest first."""
    with ThreadPoolExecutor(_READERS) as pool:  # a remote store answers each question after a while
        rows = list(pool.map(lambda stored: _artifact_row(store, stored), store.artifacts()))
    return sorted(rows, key=lambda row: (row.artifact.kind, -row.published_at.timestamp()))


def _artifact_row(store: ArtifactStore, stored: StoredArtifact) -> ArtifactRow:
    try:
        manifest = store.manifest(stored.ref)
    except PipelineError as error:
        return ArtifactRow(artifact=stored.ref, published_at=stored.published_at, problem=error.message)
    made = manifest.provenance
    return ArtifactRow(
        artifact=stored.ref,
        bytes=manifest.size,
        files=len(manifest.files),
        made_by=f"{made.stage} {made.subject}".strip(),
        release_id=made.release_id,
        published_at=stored.published_at,
    )


LISTINGS: Mapping[str, Listing] = {
    "releases": Listing(
        release_rows,
        {
            "release": lambda row: row.release_id,
            "model": lambda row: f"{row.model}@{row.commit[:8]}",
            "resolved (UTC)": lambda row: readable_time(row.resolved_at),
            "verdict": lambda row: row.verdict or "open",
            "reached": lambda row: "; ".join([row.reached, *row.pauses]),
            "serves": lambda row: ", ".join(row.serves),
        },
    ),
    "artifacts": Listing(
        artifact_rows,
        {
            "artifact": lambda row: str(row.artifact),
            "size": lambda row: "" if row.bytes is None else byte_size(row.bytes),
            "files": lambda row: "" if row.files is None else str(row.files),
            "made by": lambda row: row.problem or row.made_by,
            "for release": lambda row: row.release_id,
            "published (UTC)": lambda row: readable_time(row.published_at),
        },
        right=("size", "files"),
    ),
}
"""By the word that `llm-pipeline ls` takes."""
