"""What a stage read and made, as OpenLineage's data sets: model commit, checkpoint, engine, repository, endpoint.

Airflow's OpenLineage provider asks the operator for it when a task has ended. Without that provider nobody does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from llm_pipeline.base.records import ArtifactRef
    from llm_pipeline.release.contract import StageResult
    from llm_pipeline.release_progress import ReleaseProgress

DataSet = tuple[str, str, str]
"""Namespace, name and version."""

_HUB = "huggingface"
_ENDPOINTS = "llm-pipeline-endpoint"


def data_sets(flow: ReleaseProgress, result: StageResult) -> tuple[list[DataSet], list[DataSet]]:
    """What a stage of a release read, and what it made."""
    record, target = flow.record, result.subject.partition(":")[0]
    read = [_artifact(flow, ref) for ref in flow.request(result.stage, result.subject).inputs.values()]
    made = [_artifact(flow, ref) for ref in result.artifacts.values()]
    if result.stage == "download":
        read.append((_HUB, record.model.id, record.model.commit))
    if result.stage == "settle":
        read = [_artifact(flow, flow.artifact("package", target, "repository"))]
        made = [(_ENDPOINTS, f"{flow.deployment.name}/{record.place_of(target)}", record.release_id)]
    return read, made


def lineage_of(flow: ReleaseProgress, result: StageResult) -> OperatorLineage:
    """The same for the provider."""
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import Dataset
    from openlineage.client.facet_v2 import dataset_version_dataset as version

    read, made = (
        [Dataset(space, name, facets={"version": version.DatasetVersionDatasetFacet(of)}) for space, name, of in sets]
        for sets in data_sets(flow, result)
    )
    return OperatorLineage(inputs=read, outputs=made)


def _artifact(flow: ReleaseProgress, ref: ArtifactRef) -> DataSet:
    place = urlsplit(flow.store.uri)
    space = f"{place.scheme}://{place.netloc}" if place.netloc else place.scheme
    return space, f"{place.path.strip('/')}/artifacts/{ref.kind}/{ref.digest}", ref.digest
