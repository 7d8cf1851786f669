"""What the store says of a release: its artifacts, who uses them, its paused canaries, and what cannot be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from llm_pipeline.base.errors import PipelineError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.record import canary_record_name, read_canary_record, standing_pause
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.record import ReleaseRecord, read_release_record, release_record_name
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.documents import DamagedDocument
from llm_pipeline.store.place_state import readable_places
from llm_pipeline.store.references import readable_pointers, release_ids

SHOWN_DIGITS = 12
"""Of a key or digest, in tables."""


def release_artifacts(record: ReleaseRecord, results: Sequence[StageResult]) -> Iterator[tuple[str, ArtifactRef]]:
    """All artifacts of a release, with what each is to it: its datasets, then its results in the order they ran."""
    for name, ref in record.datasets.items():
        yield f"dataset {name}", ref
    for result in results:
        for name, ref in result.artifacts.items():
            yield " ".join(part for part in (result.stage, result.subject, name) if part), ref


def results_in_order(flow: ReleaseProgress) -> list[StageResult]:
    """The results of a release in the order they ran.

    Raises:
        IntegrityError: One is damaged.
    """
    return _in_order(flow.results().values())


def readable_results(flow: ReleaseProgress) -> tuple[list[StageResult], list[DamagedDocument]]:
    """The results of a release that can be read, in the order they ran, and the documents that cannot."""
    found, damaged = flow.readable_results()
    return _in_order(found.values()), damaged


def users_of(store: ArtifactStore, ref: ArtifactRef) -> tuple[list[str], list[DamagedDocument]]:
    """Who uses an artifact: pointers, then releases with what it is to them; and the documents that do not say."""
    references, unreadable = readable_pointers(store)
    users = [str(reference) for reference in references if reference.pointer.repository == ref]
    damaged = [*unreadable]
    for release_id in release_ids(store):
        try:
            flow = ReleaseProgress(store, read_release_record(store, release_id))
        except PipelineError as error:
            damaged.append(DamagedDocument.of(release_record_name(release_id), error))
            continue
        results, not_read = readable_results(flow)
        users += [f"{release_id}: {name}" for name, used in release_artifacts(flow.record, results) if used == ref]
        damaged += not_read
    return users, damaged


def standing_pauses(store: ArtifactStore) -> tuple[dict[str, list[str]], list[DamagedDocument]]:
    """The canaries that are paused now, for people, by release; and their records that do not say."""
    pauses: dict[str, list[str]] = {}
    damaged = []
    for place, state in readable_places(store)[0].items():
        try:
            record = read_canary_record(store, state.on_trial, place) if state.on_trial else None
            if record is not None and (pause := standing_pause(state, record)):
                pauses.setdefault(record.release_id, []).append(f"{place} {pause}")
        except PipelineError as error:
            damaged.append(DamagedDocument.of(canary_record_name(state.on_trial, place), error))
    return pauses, damaged


def _in_order(results: Iterable[StageResult]) -> list[StageResult]:
    return sorted(results, key=lambda result: result.timings.started_at)
