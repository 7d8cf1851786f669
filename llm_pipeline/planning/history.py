"""What a store holds of earlier releases: the commit that they pinned, what their stages made, and how long that took.

history = read_history(open_store(deployment.store), loaded)
history.seconds("quantize", "fp8")  # (11.2, 10.9): of the releases in which it was computed
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pydantic import ValidationError

from llm_pipeline.planning.background import side_by_side
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.newest import NotedRelease, newest_of_config, newest_of_model
from llm_pipeline.release.record import ReleaseRecord, readable_record
from llm_pipeline.store import ArtifactStore

if TYPE_CHECKING:
    from llm_pipeline.release.loading import LoadedRelease

RELEASES_READ = 5
"""Newest releases whose results are read."""

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class PastRelease:
    """One release and all results of its stages."""

    record: ReleaseRecord
    results: Mapping[tuple[str, str], StageResult]


@dataclass(frozen=True)
class History:
    """Earlier releases of a config, the newest first; of its model, where the config has none.

    Attributes:
        name: The config's name.
        releases: At most `RELEASES_READ`.
    """

    name: str
    releases: tuple[PastRelease, ...] = ()

    @property
    def newest(self) -> ReleaseRecord | None:
        """The newest release's record."""
        return self.releases[0].record if self.releases else None

    def last(self, stage: str, subject: str) -> StageResult | None:
        """The newest result of a stage."""
        found = (past.results.get((stage, subject)) for past in self.releases)
        return next((result for result in found if result), None)

    def tools(self, stage: str, names: Collection[str]) -> dict[str, str]:
        """Versions of these tools when a stage last ran with them, whatever it worked on."""
        results = (result for past in self.releases for result in past.results.values() if result.stage == stage)
        return next((result.tools for result in results if result.tools.keys() == set(names)), {})

    def at(self, revision: str) -> History:
        """The releases of what that revision named when they were resolved, or of that commit."""

        def is_of(record: ReleaseRecord) -> bool:
            named = record.overrides.revision or record.release.model.revision
            return record.model.commit == revision if _COMMIT.fullmatch(revision) else named == revision

        return replace(self, releases=tuple(past for past in self.releases if is_of(past.record)))

    def seconds(self, stage: str, subject: str) -> tuple[float, ...]:
        """How long a stage took in the releases of this very config that computed it."""
        ours = (past.results.get((stage, subject)) for past in self.releases if past.record.release.name == self.name)
        return tuple(result.timings.total_seconds for result in ours if result and not result.reused)


def read_history(store: ArtifactStore, loaded: LoadedRelease) -> History:
    """Read the releases that a new one of this config is compared with: those of the same source and revision.

    Raises:
        Transient: The store cannot be read now.
        ConfigError: There is no such store.
    """
    records = _records(store, newest_of_config(store, loaded.config.name))
    own = [record for record in _alike(loaded, records) if record.release.name == loaded.config.name]
    if not own:
        own = _alike(loaded, _records(store, newest_of_model(store, loaded.config.model.id)))
    newest = sorted(own, key=lambda record: record.created_at, reverse=True)[:RELEASES_READ]
    return History(loaded.config.name, tuple(PastRelease(record, _results(store, record)) for record in newest))


def _records(store: ArtifactStore, noted: Sequence[NotedRelease]) -> list[ReleaseRecord | None]:
    return side_by_side(partial(readable_record, store), [one.release_id for one in noted])


def _alike(loaded: LoadedRelease, records: Iterable[ReleaseRecord | None]) -> list[ReleaseRecord]:
    """Releases of the same model, source and revision: their commit may be pinned again."""
    asked = loaded.release.model

    def is_alike(record: ReleaseRecord) -> bool:
        model = record.release.model
        if (model.id, model.source) != (asked.id, asked.source):
            return False
        return record.model.commit == asked.revision if _COMMIT.fullmatch(asked.revision) else (
            model.revision == asked.revision
        )  # fmt: skip

    return [record for record in records if record is not None and is_alike(record)]


def _results(store: ArtifactStore, record: ReleaseRecord) -> dict[tuple[str, str], StageResult]:
    wanted = store.list_documents(f"releases/{record.release_id}/results")
    found = [result for result in side_by_side(partial(_result, store), wanted) if result]
    return {(result.stage, result.subject): result for result in found}


def _result(store: ArtifactStore, name: str) -> StageResult | None:
    document = store.read_document(name)
    try:
        return StageResult.model_validate(document.value) if document else None
    except ValidationError:
        return None
