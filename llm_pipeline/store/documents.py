"""The store's documents: which names they may have, and one clear error for each that is damaged."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, JsonValue, ValidationError

from llm_pipeline.base.errors import ConfigError, IntegrityError, PipelineError

Model = TypeVar("Model", bound=BaseModel)

_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+@-]*(/[A-Za-z0-9_][A-Za-z0-9_.:+@-]*)*")


def checked_name(name: str) -> str:
    """The name itself, if it cannot leave the store.

    Raises:
        ConfigError: It is absolute, empty, hidden, or has parts or characters that a store does not take.
    """
    if not _SAFE_NAME.fullmatch(name):
        raise ConfigError(f"not a name for the store: {name!r}")
    return name


def model_of(name: str) -> str:
    """The model that a document belongs to: `pointers/organisation/name/..`, or `claims/organisation/name.json`.

    Raises:
        IntegrityError: It belongs to none.
    """
    parts = PurePosixPath(name).with_suffix("").parts[1:3]
    if len(parts) != 2:  # noqa: PLR2004 - organisation and name
        hint = "move it out of the store: llm-pipeline has not written it"
        raise IntegrityError(f"{name!r} is of no model", where=name, hint=hint)
    return "/".join(parts)


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
    """The value of a stored document, and what the store wrote beside it under `revision_key`.

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
            f"the document {name} cannot be understood: {problem}",
            where=name,
            hint=hint or "restore it from a backup",
        ) from error
