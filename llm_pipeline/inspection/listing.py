"""`llm-pipeline ls`: what a store holds, one table a kind of thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from llm_pipeline.base.errors import PipelineError
from llm_pipeline.base.quantities import byte_size
from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.base.text_table import readable_time, titled_columns
from llm_pipeline.inspection.release_artifacts import standing_pauses
from llm_pipeline.inspection.release_summaries import ReleaseRow, read_releases
from llm_pipeline.store.artifact_store import ArtifactStore, StoredArtifact
from llm_pipeline.store.documents import DamagedDocument
from llm_pipeline.store.references import readable_pointers

_READERS = 8


class ArtifactRow(Frozen):
    """An artifact; `problem` says why its manifest cannot be read."""

    artifact: ArtifactRef
    bytes: int | None = None
    files: int | None = None
    made_by: str = ""
    release_id: str = ""
    published_at: datetime
    problem: str = ""

    def cells(self) -> dict[str, str]:
        """Its line of a table, by the titles of the columns."""
        return {
            "artifact": str(self.artifact),
            "size": "" if self.bytes is None else byte_size(self.bytes),
            "files": "" if self.files is None else str(self.files),
            "made by": self.problem or self.made_by,
            "for release": self.release_id,
            "published (UTC)": readable_time(self.published_at),
        }


Row = ReleaseRow | ArtifactRow | DamagedDocument


def table(rows: Sequence[Row]) -> list[str]:
    """The rows as aligned lines; what cannot be read comes last."""
    cells = [row.cells() for row in rows if not isinstance(row, DamagedDocument)]
    lines = []
    if cells:
        lines = titled_columns(list(cells[0]), [list(one.values()) for one in cells], right=("size", "files"))
    return lines + [str(row) for row in rows if isinstance(row, DamagedDocument)]


def is_damaged(row: Row) -> bool:
    """Whether a row stands for something that cannot be read."""
    return isinstance(row, DamagedDocument) or (isinstance(row, ArtifactRow) and row.problem != "")


def release_rows(store: ArtifactStore) -> list[Row]:
    """The releases, newest first, with what they serve and which of their canaries are paused."""
    releases, damaged = read_releases(store)
    pointers, unreadable = readable_pointers(store)
    serves: dict[str, list[str]] = {}
    for reference in pointers:
        serves.setdefault(reference.pointer.release_id, []).append(f"{reference.name} {reference.target}")
    pauses, unclear = standing_pauses(store)
    rows = []
    for row in (one.row for one in releases):
        now = {"serves": tuple(serves.get(row.release_id, ())), "pauses": tuple(pauses.get(row.release_id, ()))}
        rows.append(row.model_copy(update=now))
    return [*rows, *damaged, *unreadable, *unclear]


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


LISTINGS: Mapping[str, Callable[[ArtifactStore], Sequence[Row]]] = {
    "releases": release_rows,
    "artifacts": artifact_rows,
}
"""What reads them, by the word that `llm-pipeline ls` takes; what cannot be read is a `DamagedDocument`."""
