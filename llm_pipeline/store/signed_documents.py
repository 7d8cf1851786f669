"""Documents that decide what a release does: written with a signature, and refused without where one is required.

A release's record and results, the outcomes of its jobs, and what was concluded under a stage key or a calibration's
are signed by the stage's process that writes them. Leases, claims, pointers and the state of a canary are not, because
processes without a key change them. What a pointer names is checked against what is signed, in
`llm_pipeline.release.trusted_pointers`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from pydantic import JsonValue

from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict, Document

_SIGNATURE = "signature"


def replace_document(
    store: ArtifactStore, name: str, value: Mapping[str, JsonValue], signature: str | None = None
) -> None:
    """Write a document whatever it held before."""
    while True:
        current = store.read_document(name)
        with contextlib.suppress(Conflict):
            store.write_document(name, value, current.revision if current else None, signature)
            return


def write_signed(store: ArtifactStore, name: str, value: Mapping[str, JsonValue]) -> None:
    """Write a document whatever it held before, signed if this process signs.

    Raises:
        ConfigError: The signing key cannot be used.
        Transient: The store, or a service for signing, cannot be reached.
    """
    replace_document(store, name, value, store.signatures.sign_document(name, value))


def require_signed(store: ArtifactStore, name: str, document: Document) -> None:
    """Refuse a document that is not signed as the store requires.

    Raises:
        IntegrityError: It is unsigned, was altered, or is signed by somebody else or as another document.
    """
    if problem := store.signatures.document_problem(name, document.value, document.signature):
        raise refusal(store, name, problem)


def refusal(store: ArtifactStore, name: str, problem: str) -> IntegrityError:
    """The error for a document that cannot be trusted."""
    hint = "run the release again: its stages write it anew, where the signing key is"
    return IntegrityError(f"{name} cannot be trusted: {problem}", where=store.uri, hint=hint)


def signed_conclusion(store: ArtifactStore, name: str, value: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """What a lease is concluded with, with a signature in it if this process signs: later holders keep both."""
    signature = store.signatures.sign_document(name, value)
    return dict(value) if signature is None else {**value, _SIGNATURE: signature}


def conclusion_problem(store: ArtifactStore, name: str, conclusion: Mapping[str, JsonValue]) -> str | None:
    """Why what a lease was concluded with cannot be trusted; None when it can."""
    value = {field: content for field, content in conclusion.items() if field != _SIGNATURE}
    signature = conclusion.get(_SIGNATURE)
    return store.signatures.document_problem(name, value, signature if isinstance(signature, str) else None)
