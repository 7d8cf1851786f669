"""`llm-pipeline verify`: every byte and signature of what a reference names, and of the documents that lead to it."""

from __future__ import annotations

from collections.abc import Iterator

from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.inspection.release_artifacts import release_artifacts, results_in_order
from llm_pipeline.release.execute import results_name, stage_record_name, trusted_stage_record
from llm_pipeline.release.record import read_release_record, release_record_name, trusted_record
from llm_pipeline.release.trusted_pointers import pointer_problem
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.manifest import Difference
from llm_pipeline.store.place_state import place_name
from llm_pipeline.store.references import PointerReference, Reference, ReleaseReference


class Verification(Frozen):
    """An artifact, read byte by byte; or a document that cannot be trusted.

    Attributes:
        name: What it is to what was asked for, e.g. `quantize fp8 checkpoint`.
        artifact: None for a document.
        problems: How it differs from what was published; empty when it is whole.
    """

    name: str
    artifact: ArtifactRef | None
    problems: tuple[Difference, ...]

    def lines(self) -> list[str]:
        """One line for the artifact or document, and one for each problem."""
        state = "whole" if not self.problems else "DAMAGED"
        found = [f"  {item.path}: {item.problem}" for item in self.problems]
        return [f"{state}  {self.artifact or 'document'}  {self.name}".rstrip(), *found]


def verify_reference(store: ArtifactStore, reference: Reference) -> Iterator[Verification]:
    """Verify what a reference names, artifact by artifact, each one once; then the documents that name them.

    Of the documents, only those that cannot be trusted are listed.

    Raises:
        ConfigError: There is no such release any more.
    """
    names: dict[ArtifactRef, str] = {}
    for name, ref in _artifacts(store, reference):
        names.setdefault(ref, name)
    for ref, name in names.items():
        yield Verification(name=name, artifact=ref, problems=tuple(store.verify(ref)))
    for name, path, problem in _distrusted(store, reference):
        yield Verification(name=name, artifact=None, problems=(Difference(path, problem),))


def _artifacts(store: ArtifactStore, reference: Reference) -> Iterator[tuple[str, ArtifactRef]]:
    match reference:
        case ArtifactRef():
            yield "", reference
        case ReleaseReference(release_id):
            flow = ReleaseProgress(store, read_release_record(store, release_id))
            yield from release_artifacts(flow.record, results_in_order(flow))
        case PointerReference():
            yield str(reference), reference.pointer.repository


def _distrusted(store: ArtifactStore, reference: Reference) -> Iterator[tuple[str, str, str]]:
    """Documents that a release would refuse: what each is, its name, and why."""
    match reference:
        case ReleaseReference(release_id):
            yield from _of_release(store, release_id)
        case PointerReference(_, model_id, target, pointer):
            if problem := pointer_problem(store, model_id, target, pointer):
                yield str(reference), place_name(target), problem
        case ArtifactRef():
            return


def _of_release(store: ArtifactStore, release_id: str) -> Iterator[tuple[str, str, str]]:
    try:
        record = trusted_record(store, release_id)
    except IntegrityError as error:
        yield "record of the release", release_record_name(release_id), error.message
        record = read_release_record(store, release_id)
    flow, trusting = ReleaseProgress(store, record), ReleaseProgress(store, record, trusts_signed_only=True)
    for (stage, subject), result in flow.results().items():
        name = f"{stage} {subject}".rstrip()
        try:
            trusting.find(stage, subject)
        except IntegrityError as error:
            yield f"result of {name}", results_name(release_id, stage, subject), error.message
        try:
            trusted_stage_record(store, result.key)
        except IntegrityError as error:
            yield f"stage record of {name}", stage_record_name(result.key), error.message
