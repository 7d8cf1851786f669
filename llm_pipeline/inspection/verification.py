"""`llm-pipeline verify`: every byte and signature of what a reference names."""

from __future__ import annotations

from collections.abc import Iterator

from llm_pipeline.flow import Flow
from llm_pipeline.inspection.release_artifacts import release_artifacts, results_in_order
from llm_pipeline.release_record import read_record
from llm_pipeline.stages.contract import ArtifactRef, Frozen
from llm_pipeline.stages.execute import read_stage_record
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.references import (
    ArtifactReference,
    PointerReference,
    Reference,
    ReleaseReference,
    StageReference,
)


class Problem(Frozen):
    """One way in which an artifact is not what was published."""

    path: str
    problem: str


class Verification(Frozen):
    """An artifact, read byte by byte.

    Attributes:
        name: What it is to what was asked for, e.g. `quantize fp8 checkpoint`.
        problems: How it differs from what was published; empty when it is whole.
    """

    name: str
    artifact: ArtifactRef
    problems: tuple[Problem, ...]

    def lines(self) -> list[str]:
        """One line for the artifact, and one for each problem."""
        state = "whole" if not self.problems else "DAMAGED"
        found = [f"  {item.path}: {item.problem}" for item in self.problems]
        return [f"{state}  {self.artifact}  {self.name}".rstrip(), *found]


def verify_reference(store: ArtifactStore, reference: Reference) -> Iterator[Verification]:
    """Verify what a reference names, artifact by artifact; each one once.

    Raises:
        ConfigError: There is no such release any more.
    """
    names: dict[ArtifactRef, str] = {}
    for name, ref in _artifacts(store, reference):
        names.setdefault(ref, name)
    for ref, name in names.items():
        found = tuple(Problem(path=item.path, problem=item.problem) for item in store.verify(ref))
        yield Verification(name=name, artifact=ref, problems=found)


def _artifacts(store: ArtifactStore, reference: Reference) -> Iterator[tuple[str, ArtifactRef]]:
    match reference:
        case ArtifactReference(ref):
            yield "", ref
        case ReleaseReference(release_id):
            flow = Flow(store, read_record(store, release_id))
            yield from release_artifacts(flow.record, results_in_order(flow))
        case PointerReference():
            yield str(reference), reference.pointer.repository
        case StageReference(key):
            record = read_stage_record(store, key)
            yield from record.result.artifacts.items() if record else ()
