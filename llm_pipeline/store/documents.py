"""Reading the store's documents: one clear error for each that is damaged."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, JsonValue, ValidationError

from llm_pipeline.base.errors import IntegrityError, PipelineError

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class DamagedDocument:
    """A document that cannot be read or understood.

    Attributes:
        error: Why, and what to do about it.
    """

    name: str
    error: PipelineError


class Unwrapped(NamedTuple):
    """A stored document: its value, what the store wrote beside it, and its signature if it was written with one."""

    value: dict[str, Any]
    beside: str
    signature: str | None


def unwrapped(data: bytes, name: str, where: str, revision_key: str) -> Unwrapped:
    """The value of a stored document, and what is beside it.

    Args:
        data: The stored bytes.
        name: The document's name, for the error.
        where: Its file or address, for the error.
        revision_key: Key of what the store wrote beside the value.

    Raises:
        IntegrityError: It is no document of a store.
    """
    try:
        wrapped = json.loads(data)
        value, beside = wrapped["value"], str(wrapped[revision_key])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _no_document(name, where, str(error)) from error
    if not isinstance(value, dict):
        raise _no_document(name, where, "its value is not an object")
    signature = wrapped.get("signature")
    return Unwrapped(value, beside, signature if isinstance(signature, str) else None)


def _no_document(name: str, where: str, problem: str) -> IntegrityError:
    return IntegrityError(
        f"{name} is not a document of the store: {problem}",
        where=where,
        hint="restore it from a backup; remove it only if you know that nothing needs it",
    )


def understood(model: type[Model], value: JsonValue, name: str, *, hint: str = "") -> Model:
    """The content of a document as a model.

    Args:
        model: What it should be.
        value: The content.
        name: The document's name, for the error.
        hint: What to do about a damaged document; by default what is right for any.

    Raises:
        IntegrityError: The document is damaged, or of a version of this package that writes another form.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        problem = f"{field}: {first['msg']}" if field else first["msg"]
        raise IntegrityError(
            f"the document {name} cannot be understood: {problem}",
            where=name,
            hint=hint or "restore it from a backup, or use the version of llm-pipeline that wrote it",
        ) from error
