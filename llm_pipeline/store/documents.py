"""The document layer: small JSON documents changed by compare-and-swap, and one clear error for each damaged one."""

from __future__ import annotations

import json
import random
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, Field, JsonValue, ValidationError

from llm_pipeline.base.errors import ConfigError, IntegrityError, PipelineError, Transient
from llm_pipeline.base.records import Frozen
from llm_pipeline.store.blobs import Blobs, Changed

Model = TypeVar("Model", bound=BaseModel)

_TRIES = 20
_LONGEST_PAUSE_SECONDS = 0.1
_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+@-]*(/[A-Za-z0-9_][A-Za-z0-9_.:+@-]*)*")


class Conflict(Transient):
    """A document was changed by another process since it was read."""


@dataclass(frozen=True)
class Document:
    """A small JSON document and the revision it was read at.

    Attributes:
        signature: Of its name and value, if whoever wrote it signed it; reading it verifies nothing.
    """

    value: dict[str, JsonValue]
    revision: str
    signature: str | None = None


def checked_name(name: str) -> str:
    """The name itself, if it cannot leave the store.

    Raises:
        ConfigError: It is absolute, empty, hidden, or has parts or characters that a store does not take.
    """
    if not _SAFE_NAME.fullmatch(name):
        raise ConfigError(f"not a name for the store: {name!r}")
    return name


class DamagedDocument(Frozen, arbitrary_types_allowed=True):
    """A document that cannot be read or understood.

    Attributes:
        problem: Why, and what to do about it.
        error: The same, to be raised.
    """

    document: str
    problem: str
    error: PipelineError = Field(exclude=True, repr=False)

    @classmethod
    def of(cls, name: str, error: PipelineError) -> DamagedDocument:
        """The document that this was raised for."""
        return cls(document=name, problem=str(error), error=error)

    def __str__(self) -> str:
        return f"DAMAGED  {self.document}: {self.problem}"


class Documents:
    """The documents of a store, and its files for people.

    A document is stored with a nonce: two equal values are two revisions, and when the answer to a write is lost, the
    document itself tells whether the write was applied.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def read_document(self, name: str) -> Document | None:
        """The document of that name (`places/...`), or None.

        Raises:
            IntegrityError: What is there is no document of a store.
        """
        found = self._read(name)
        return found[0] if found else None

    def write_document(
        self, name: str, value: Mapping[str, JsonValue], expect: str | None, signature: str | None = None
    ) -> str:
        """Write a document if its revision is still `expect` (None: if it does not exist); returns the new revision.

        A signature is kept beside the value; nothing is signed here.

        Raises:
            Conflict: Somebody else wrote it first.
        """
        nonce = uuid.uuid4().hex
        wrapped = {"revision": nonce, "value": dict(value)} | ({} if signature is None else {"signature": signature})
        try:
            return self._blobs.put(checked_name(name), json.dumps(wrapped, allow_nan=False).encode(), expect)
        except Transient as error:
            current = self._read(name)
            if current is not None and current[1] == nonce:
                return current[0].revision
            if isinstance(error, Changed):
                message = f"{name} was changed by another process"
                raise Conflict(message, where=error.where, hint="read it again and retry") from error
            raise

    def read_as(self, name: str, model: type[Model], *, hint: str = "") -> tuple[Model | None, str | None]:
        """What a document says, and the revision it was read at; None and None if there is none.

        Raises:
            IntegrityError: It is damaged; `hint` says what to do then.
        """
        document = self.read_document(name)
        if document is None:
            return None, None
        return understood(model, document.value, name, hint=hint), document.revision

    def readable_as(
        self, folder: str, model: type[Model], *, hint: str = ""
    ) -> tuple[dict[str, Model], list[DamagedDocument]]:
        """What all documents of a folder say that can be read, by name without folder and ending; and the others.

        Raises:
            Transient: They cannot even be listed.
        """
        found, damaged = dict[str, Model](), []
        for name in self.list_documents(folder):
            try:
                said, _ = self.read_as(name, model, hint=hint)
            except PipelineError as error:
                damaged.append(DamagedDocument.of(name, error))
            else:
                if said is not None:
                    found[name.removeprefix(f"{folder}/").removesuffix(".json")] = said
        return found, damaged

    def edit_as(self, name: str, model: type[Model], edit: Callable[[Model], Model], *, hint: str = "") -> Model:
        """Change a document; `edit` is asked again if somebody else changed it meanwhile.

        Args:
            name: Of the document; one that there is not yet is a model without values.
            model: What it says.
            edit: The change; nothing is written where it changes nothing.
            hint: What to do about a damaged one.

        Returns:
            What it says then.

        Raises:
            Conflict: Others change it all the time; the same call is safe again.
            IntegrityError: It is damaged.
            Transient: The store cannot be read, or takes nothing.
        """
        for _ in range(_TRIES):
            known, revision = self.read_as(name, model, hint=hint)
            state = model() if known is None else known
            wanted = edit(state)
            if wanted == state:
                return state
            try:
                self.write_document(name, wanted.model_dump(mode="json"), revision)
            except Conflict:
                time.sleep(random.uniform(0.0, _LONGEST_PAUSE_SECONDS))  # noqa: S311 - no secret
                continue
            return wanted
        raise Conflict(f"{name} changes faster than it can be written")

    def delete_document(self, name: str) -> None:
        """Remove a document, if there is one."""
        self._blobs.delete(checked_name(name))

    def list_documents(self, prefix: str) -> Sequence[str]:
        """Names of the documents below a prefix, sorted.

        Raises:
            Transient: Some of it cannot be listed.
        """
        listed = (item.name for item in self._blobs.list(checked_name(prefix.rstrip("/"))))
        return sorted(name for name in listed if name.endswith(".json") and "/." not in name)

    def write_file(self, name: str, data: bytes) -> None:
        """Write a mutable file for people (a report), atomically."""
        self._blobs.put(checked_name(name), data)

    def read_file(self, name: str) -> bytes:
        """Read a file that `write_file` wrote.

        Raises:
            FileNotFoundError: There is none.
        """
        found = self._blobs.get(checked_name(name))
        if found is None:
            raise FileNotFoundError(self._blobs.address(name))
        return found.data

    def _read(self, name: str) -> tuple[Document, str] | None:
        """A document and its nonce."""
        blob = self._blobs.get(checked_name(name))
        if blob is None:
            return None
        try:
            wrapped = json.loads(blob.data)
            value, nonce, signature = wrapped["value"], str(wrapped["revision"]), wrapped.get("signature")
            problem = "" if isinstance(value, dict) else "its value is not an object"
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            problem = str(error)
        if problem:
            hint = "restore it from a backup; remove it only if you know that nothing needs it"
            raise IntegrityError(
                f"{name} is not a document of the store: {problem}", where=self._blobs.address(name), hint=hint
            )
        return Document(value, blob.revision, signature if isinstance(signature, str) else None), nonce


def understood(model: type[Model], value: JsonValue, name: str, *, hint: str = "") -> Model:
    """The content of a document as a model.

    Raises:
        IntegrityError: The document is damaged.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        problem = f"{field}: {first['msg']}" if field else first["msg"]
        raise IntegrityError(
            f"the document {name} cannot be understood: {problem}", where=name, hint=hint or "restore it from a backup"
        ) from error
