"""Which artifacts belong to a release, and who uses an artifact."""

from __future__ import annotations

from collections.abc import Iterator

from llm_pipeline.flow import Flow
from llm_pipeline.release_record import read_record
from llm_pipeline.stages.contract import ArtifactRef
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.references import placed_pointers, release_ids


def release_artifacts(flow: Flow) -> Iterator[tuple[str, ArtifactRef]]:
    """All artifacts of a release, with what each is to it: its datasets, then its results in the order they ran."""
    for name, ref in flow.record.datasets.items():
        yield f"dataset {name}", ref
    for result in sorted(flow.results().values(), key=lambda result: result.timings.started_at):
        for name, ref in result.artifacts.items():
            yield " ".join(part for part in (result.stage, result.subject, name) if part), ref


def users_of(store: ArtifactStore, ref: ArtifactRef) -> Iterator[str]:
    """Who uses an artifact: pointers, then releases with what it is to them."""
    for placed in placed_pointers(store):
        for reference in placed.references():
            if reference.pointer.repository == ref:
                yield str(reference)
    for release_id in release_ids(store):
        for name, used in release_artifacts(Flow(store, read_record(store, release_id))):
            if used == ref:
                yield f"{release_id}: {name}"
