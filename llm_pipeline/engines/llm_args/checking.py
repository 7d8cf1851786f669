"""Checking an LLM-args file against the recorded schema of a TensorRT-LLM version, before a GPU is touched.

A key that the version does not have is an error with what to write instead; what may be new in a version later than
the recorded ones is a warning. What no JSON schema says TensorRT-LLM refuses as it loads.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator, ValidationError

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import Frozen
from llm_pipeline.engines.llm_args.recorded_schema import (
    EDITIONS,
    Edition,
    RecordedSchema,
    edition_of,
    is_later_than_recorded,
    is_older_than_recorded,
    recorded_schema,
)

_ALIKE = 0.5
_DISCRIMINATOR = "decoding_type"
"""Where it is illegal, the union's branch is unknown, and errors of any branch would mislead."""


class LlmArgsCheck(Frozen):
    """Errors and uncertainties of an LLM-args file: each names the key, what is wrong, and what to write instead.

    Attributes:
        version: The version of TensorRT-LLM that it was checked for.
    """

    version: str
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def require(self, where: str) -> None:
        """Refuse a file with errors.

        Raises:
            ConfigError: There are some; all are named.
        """
        if self.errors:
            listed = "; ".join(self.errors)
            raise ConfigError(f"TensorRT-LLM {self.version} refuses these LLM args: {listed}", where=where)


def check_llm_args(document: Mapping[str, Any], version: str) -> LlmArgsCheck:
    """Check an LLM-args file.

    Args:
        document: As YAML gives it.
        version: The version of TensorRT-LLM that is to read it.

    Raises:
        Unsupported: The LLM args of that version are not recorded.
    """
    edition, later = edition_of(version), is_later_than_recorded(version)
    schema = recorded_schema(edition)
    errors, uncertain = list[str](), list[str]()
    for error in _leaf_errors(schema, Draft202012Validator(schema.document).iter_errors(dict(document))):
        for problem, sure in _problems(error, edition):
            (errors if sure or not later else uncertain).append(problem)
    if errors:
        return LlmArgsCheck(version=version, errors=tuple(sorted(errors)))
    warnings = []
    if is_older_than_recorded(version):
        warnings.append(f"the LLM args were recorded for 1.2.x: {version} may lack some of them")
    if later:
        warnings.append(f"the LLM args were recorded before {version}, which may have dropped some of them")
    return LlmArgsCheck(version=version, warnings=(*warnings, *sorted(uncertain)))


def _leaf_errors(schema: RecordedSchema, errors: Iterable[ValidationError]) -> Iterator[ValidationError]:
    """The errors, with those of a union replaced by those of the intended branch."""
    for error in errors:
        meant = None
        if error.validator in ("anyOf", "oneOf") and isinstance(error.instance, dict):
            meant = schema.branch_for(error.schema, error.instance)
        if meant is None:
            yield error
            continue
        inside = list(Draft202012Validator({**meant, "$defs": schema.document["$defs"]}).iter_errors(error.instance))
        for inner in inside:
            inner.parent = error  # it is at the place where the union stands
        yield from _leaf_errors(schema, [one for one in inside if _DISCRIMINATOR in one.path] or inside)


def _problems(error: ValidationError, edition: Edition) -> Iterator[tuple[str, bool]]:
    """What is wrong, and whether surely: not where a version later than the recorded ones may accept it."""
    path = tuple(str(part) for part in error.absolute_path)
    if error.validator == "additionalProperties":
        legal = set(error.schema.get("properties", ()))
        for key in sorted(set(map(str, error.instance)) - legal):
            yield _unknown_key(path, key, legal, edition)
    elif error.validator == "enum":
        schema, value = recorded_schema(edition), error.instance
        known = sorted(str(one) for one in schema.legal_values(path) if one is not None)
        elsewhere = _other_edition(edition, lambda other: value in other.legal_values(path))
        only = f"it exists in {elsewhere} only; " if elsewhere else ""
        yield f"{'.'.join(path)}: {value!r} is not legal -> {only}legal: {', '.join(known)}", bool(elsewhere)
    else:
        yield f"{'.'.join(path)}: {error.message}", True


def _unknown_key(path: tuple[str, ...], key: str, legal: Iterable[str], edition: Edition) -> tuple[str, bool]:
    """What to write instead: the same key at another place, else the keys spelled alike here.

    Neither proves a mistake: 55 of the 98 keys that upstream added after the recording look like a recorded one.
    """
    schema, dotted = recorded_schema(edition), ".".join((*path, key))
    if other := _other_edition(edition, lambda other: key in other.legal_keys(path)):
        return f"{dotted}: exists in {other} only", True
    if not path and (advice := schema.document["x-known-wrong-keys"].get(key)):
        return f"{dotted}: unknown key -> {advice}", True
    if places := schema.places_of(key):
        hint = f" -> it belongs at {' or '.join(places)}"
    else:
        alike = difflib.get_close_matches(key, sorted(legal), n=2, cutoff=_ALIKE)
        hint = f" -> did you mean {' or '.join(alike)}?" if alike else ""
    return f"{dotted}: unknown key{hint}", False


def _other_edition(edition: Edition, has: Callable[[RecordedSchema], bool]) -> str:
    """The other edition, if it has what this one lacks."""
    return next((other for other in EDITIONS if other != edition and has(recorded_schema(other))), "")
