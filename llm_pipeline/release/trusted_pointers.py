"""Checks that what a pointer names was packaged for its model and place, by signed documents.

Pointers are unsigned, because whoever takes production back has no signing key. So before a server is started for one,
the signed record and the signed `package` result of the pointer's release must say that its repository was packaged for
that model and place. A pointer that was set back to an older release cannot be told from a rollback.
"""

from __future__ import annotations

from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.execute import results_name
from llm_pipeline.release.record import trusted_record
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.documents import understood
from llm_pipeline.store.place_state import Pointer, place_name
from llm_pipeline.store.signed_documents import require_signed


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
    if not store.signatures.required:
        return None
    try:
        record = trusted_record(store, pointer.release_id)
        name = results_name(pointer.release_id, "package", record.target_at(place))
        if (document := store.read_document(name)) is None:
            return f"the release packaged nothing for {place}"
        require_signed(store, name, document)
        packaged = understood(StageResult, document.value, name).artifacts.values()
    except (ConfigError, IntegrityError) as error:
        return error.message
    if record.model.id != model_id:
        return f"the release is of {record.model.id}"
    return (
        None if pointer.repository in packaged else f"the release packaged another repository than {pointer.repository}"
    )
