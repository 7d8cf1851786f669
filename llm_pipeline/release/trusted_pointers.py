"""Checks that what a pointer names was packaged for its model and place, by signed documents.

Pointers are unsigned, because whoever takes production back has no signing key. So before a server is started for one,
something signed must say that its repository was packaged for that model and place: the record and the `package`
result of the pointer's release, or (for a release made before these were signed, when places had their targets' names)
the provenance of the repository and of what it was made from. A pointer that was set back to an older release cannot be
told from a rollback.
"""

from __future__ import annotations

from pydantic import ValidationError

from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.execute import results_name
from llm_pipeline.release.record import trusted_record
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.place_state import Pointer, place_name
from llm_pipeline.store.signed_documents import require_signed

_MADE_FROM = ("engine", "checkpoint")
_LONGEST_CHAIN = 8


def require_served(store: ArtifactStore, model_id: str, place: str, pointer: Pointer) -> None:
    """Refuse a pointer to what was not packaged for that model and place.

    Raises:
        IntegrityError: It names something else, or an artifact that is not signed as the store requires.
    """
    if problem := pointer_problem(store, model_id, place, pointer):
        raise IntegrityError(
            f"release {pointer.release_id} is not served for {model_id} at {place}: {problem}",
            where=f"{store.uri}/{place_name(place)}",
            hint="the pointer was altered, or is wrong; run a release of the model again to set it",
        )


def pointer_problem(store: ArtifactStore, model_id: str, place: str, pointer: Pointer) -> str | None:
    """Why a pointer cannot be trusted; None when it can, or where no signatures are required."""
    if not store.signatures.required or _is_packaged_by(store, model_id, place, pointer):
        return None
    try:
        made = store.provenance(pointer.repository)
        if (made.stage.partition("/")[0], made.subject) != ("package", place):
            return f"{pointer.repository} was made by {made.stage or 'hand'} for {made.subject or 'no target'}"
        made_of = _model_of(store, pointer.repository)
    except IntegrityError as error:
        return error.message
    return None if made_of == model_id else f"{pointer.repository} was made of {made_of or 'no known model'}"


def _is_packaged_by(store: ArtifactStore, model_id: str, place: str, pointer: Pointer) -> bool:
    """Whether the pointer's release says so, signed."""
    try:
        record = trusted_record(store, pointer.release_id)
        name = results_name(pointer.release_id, "package", record.target_at(place))
        if (document := store.read_document(name)) is None:
            return False
        require_signed(store, name, document)
        packaged = StageResult.model_validate(document.value).artifacts.values()
    except (ConfigError, IntegrityError, ValidationError):
        return False
    return record.model.id == model_id and pointer.repository in packaged


def _model_of(store: ArtifactStore, repository: ArtifactRef) -> str | None:
    """The model that was downloaded for what the repository holds, as the artifacts on the way were signed."""
    ref: ArtifactRef | None = repository
    for _ in range(_LONGEST_CHAIN):
        if ref is None:
            return None
        made = store.provenance(ref)
        if made.stage.partition("/")[0] == "download":
            return str(made.config.get("model_id"))
        ref = next((made.inputs[name] for name in _MADE_FROM if name in made.inputs), None)
    return None
