"""Documents that belong to one model, under a name that no other model has.

`organisation/name` is written `organisation--name`. Where two models would be written alike (`a--b/c` and `a/b--c`),
a digest of the model's id follows: `a--b--c+3f5a0c9d1e2b`.

Versions before did not write the digest, so such models shared one document. It is still read. The first write for
one of the models closes it, by compare-and-swap, and then creates the model's own document:

- A closed document keeps its content and never changes again, so a reader between the two steps finds what it held.
- Of two writers, one closes it or creates the own document; the other one gets a `Conflict`, as for any document.
- A version before cannot understand a closed document: it stops, and neither moves nor forgets anything.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict, Document

_SLASH = "--"
_DIGEST_MARK = "+"
"""Stands in no model's id, so a name with a digest is never the plain name of another model."""

_DIGEST_LENGTH = 12
_PART_OF_ID = re.compile(r"[A-Za-z0-9][\w.-]*")
_CLOSED = "closed"
_READ_FROM_SHARED = "shared:"


def model_part(model_id: str) -> str:
    """A model's id as part of a document's name: distinct for each model."""
    plain = _plain(model_id)
    return plain if len(_written_so(plain)) <= 1 else f"{plain}{_DIGEST_MARK}{_digest(model_id)}"


def models_of_part(part: str) -> tuple[str, ...]:
    """The models that such a part stands for: one, or all that shared a document of a version before.

    Raises:
        IntegrityError: It stands for no model.
    """
    plain, mark, digest = part.partition(_DIGEST_MARK)
    models = [model for model in _written_so(plain) if not mark or _digest(model) == digest]
    if not models:
        raise IntegrityError(
            f"{part!r} stands for no model",
            where=part,
            hint="move it out of the store: llm-pipeline has not written it",
        )
    return tuple(models)


@dataclass(frozen=True)
class ModelDocument:
    """A document of one model.

    Attributes:
        name: Its name.
        shared: The name that it shared with other models' before; None if its name was its own.
    """

    name: str
    shared: str | None = None

    @classmethod
    def of(cls, form: str, model_id: str) -> ModelDocument:
        """The document of a model, e.g. of the form `claims/{model}.json`."""
        part, plain = model_part(model_id), _plain(model_id)
        shared = None if part == plain else form.format(model=plain)
        return cls(form.format(model=part), shared)

    def read(self, store: ArtifactStore) -> Document | None:
        """The document; what other models wrote may be in it if `is_shared` says so."""
        own = store.read_document(self.name)
        if own is not None or self.shared is None:
            return own
        shared = store.read_document(self.shared)
        if shared is None:
            return None
        value = {key: part for key, part in shared.value.items() if key != _CLOSED}
        return Document(value, f"{_READ_FROM_SHARED}{shared.revision}")

    def write(self, store: ArtifactStore, value: Mapping[str, JsonValue], expect: str | None) -> str:
        """Write the document if its revision is still `expect`; returns the new revision.

        Raises:
            Conflict: Somebody else wrote it first.
        """
        if self.shared is None or expect is None or not expect.startswith(_READ_FROM_SHARED):
            return store.write_document(self.name, value, expect)
        self._close(store, self.shared, expect.removeprefix(_READ_FROM_SHARED))
        return store.write_document(self.name, value, None)

    def _close(self, store: ArtifactStore, name: str, expect: str) -> None:
        shared = store.read_document(name)
        if shared is None or shared.revision != expect:
            raise Conflict(f"{name} was changed by another process", hint="read it again and retry")
        if _CLOSED not in shared.value:
            store.write_document(name, {**shared.value, _CLOSED: True}, expect)


def is_shared(document: Document) -> bool:
    """Whether a document that `ModelDocument.read` returned may hold what other models wrote."""
    return document.revision.startswith(_READ_FROM_SHARED)


def model_of_release(store: ArtifactStore, release_id: str) -> str | None:
    """The model of a release; None if the store has no record of it that says so."""
    document = store.read_document(f"releases/{release_id}/release.json") if release_id else None
    model = document.value.get("model") if document else None
    found = model.get("id") if isinstance(model, dict) else None
    return found if isinstance(found, str) else None


def _plain(model_id: str) -> str:
    return model_id.replace("/", _SLASH)


def _written_so(plain: str) -> list[str]:
    """All models whose plain name it is."""
    found = []
    for slash in re.finditer(f"(?={_SLASH})", plain):
        organisation, name = plain[: slash.start()], plain[slash.start() + len(_SLASH) :]
        if _PART_OF_ID.fullmatch(organisation) and _PART_OF_ID.fullmatch(name):
            found.append(f"{organisation}/{name}")
    return found


def _digest(model_id: str) -> str:
    return hashlib.sha256(model_id.encode()).hexdigest()[:_DIGEST_LENGTH]
