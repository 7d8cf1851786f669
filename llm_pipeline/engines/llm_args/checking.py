"""Checking an LLM-args file against the recorded schema of a TensorRT-LLM version, before a GPU is touched.

A key that the version does not have is an error with what to write instead. Where the recording itself is
uncertain, it is a warning, never an error; so is what may be new in a version later than the recorded ones.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator, ValidationError

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import Frozen
from llm_pipeline.engines.llm_args.recorded_schema import (
    DIALECTS,
    Dialect,
    RecordedSchema,
    dialect_of,
    edition_warnings,
    is_later_than_recorded,
    recorded_schema,
)
from llm_pipeline.engines.llm_args.rules import Problem, broken_rules, rule_warnings, uncertain_keys

_ALIKE = 0.5
_DISCRIMINATOR = "decoding_type"
"""Where it is illegal, the union's branch is unknown, and errors of any branch would mislead."""


class LlmArgsCheck(Frozen):
    """Errors and uncertain keys of an LLM-args file.

    Attributes:
        version: The version of TensorRT-LLM that it was checked for.
    """

    version: str
    errors: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()

    def require(self, where: str) -> None:
        """Refuse a file with errors.

        Raises:
            ConfigError: There are some; all are named.
        """
        if self.errors:
            listed = "; ".join(map(str, self.errors))
            raise ConfigError(f"TensorRT-LLM {self.version} refuses these LLM args: {listed}", where=where)


def check_llm_args(document: object, version: str) -> LlmArgsCheck:
    """Check a parsed LLM-args file.

    Args:
        document: As YAML gives it; anything but a mapping is an error of the file.
        version: The version of TensorRT-LLM that is to read it.

    Raises:
        Unsupported: The LLM args of that version are not recorded.
    """
    dialect = dialect_of(version)
    if not isinstance(document, Mapping):
        kind = "empty" if document is None else f"a {type(document).__name__}"
        problem = Problem(path="", problem=f"the file is {kind}, and must be a mapping", hint="key: value lines")
        return LlmArgsCheck(version=version, errors=(problem,))
    schema = recorded_schema(dialect)
    found = _leaf_errors(schema, Draft202012Validator(schema.document).iter_errors(dict(document)))
    problems = sorted((problem for error in found for problem in _problems(error, dialect)), key=lambda one: one.path)
    errors = [problem for problem in problems if problem.sure or not is_later_than_recorded(version)]
    errors = errors or list(broken_rules(document, dialect))
    if errors:
        return LlmArgsCheck(version=version, errors=tuple(errors))
    edition = (Problem(path="", problem=text) for text in edition_warnings(version))
    warnings = (*edition, *problems, *uncertain_keys(document, schema), *rule_warnings(document, dialect))
    return LlmArgsCheck(version=version, warnings=warnings)


def _leaf_errors(schema: RecordedSchema, errors: Iterable[ValidationError]) -> Iterator[ValidationError]:
    """The errors, with those of a union replaced by those of the intended branch."""
    for error in errors:
        if error.validator not in ("anyOf", "oneOf"):
            yield error
        elif isinstance(error.instance, dict) and (meant := schema.branch_for(error.schema, error.instance)):
            inside = list(_inside(error, schema, meant))
            yield from _leaf_errors(schema, [one for one in inside if _DISCRIMINATOR in one.path] or inside)
        else:
            yield error


def _inside(error: ValidationError, schema: RecordedSchema, branch: dict[str, Any]) -> Iterator[ValidationError]:
    """The errors of a value against one branch, at the place where the union stands."""
    whole = Draft202012Validator({**branch, "$defs": schema.document["$defs"]})
    for inner in whole.iter_errors(error.instance):
        inner.parent = error
        yield inner


def _problems(error: ValidationError, dialect: Dialect) -> Iterator[Problem]:
    path = tuple(str(part) for part in error.absolute_path)
    if error.validator == "additionalProperties":
        legal = set(error.schema.get("properties", ()))
        for key in sorted(set(map(str, error.instance)) - legal):
            yield _unknown_key(path, key, legal, dialect)
    elif error.validator == "enum":
        yield _illegal_value(path, error.instance, dialect)
    else:
        yield Problem(path=".".join(path), problem=error.message)


def _unknown_key(path: tuple[str, ...], key: str, legal: Iterable[str], dialect: Dialect) -> Problem:
    schema, dotted = recorded_schema(dialect), ".".join((*path, key))
    others = (other.name for other in _others(dialect) if key in recorded_schema(other).legal_keys(path))
    if other := next(others, None):
        successor = schema.successor(key)
        return Problem(path=dotted, problem=f"exists in {other} only", hint=f"use {successor}" if successor else "")
    if not path and (advice := schema.wrong_key(key)):
        return Problem(path=dotted, problem="unknown key", hint=advice)
    return Problem(path=dotted, problem="unknown key", hint=_nearest(key, legal, schema), sure=False)


def _nearest(key: str, legal: Iterable[str], schema: RecordedSchema) -> str:
    """The same key at another place, else the keys spelled alike here.

    Neither proves a mistake: 55 of the 98 keys that upstream added after the recording look like a recorded one.
    """
    if places := schema.places_of(key):
        return f"it belongs at {' or '.join(places)}"
    alike = difflib.get_close_matches(key, sorted(legal), n=2, cutoff=_ALIKE)
    return f"did you mean {' or '.join(alike)}?" if alike else ""


def _illegal_value(path: tuple[str, ...], value: object, dialect: Dialect) -> Problem:
    legal = sorted(str(known) for known in recorded_schema(dialect).legal_values(path) if known is not None)
    others = (other.name for other in _others(dialect) if value in recorded_schema(other).legal_values(path))
    elsewhere = next((f"it exists in {other} only; " for other in others), "")
    return Problem(
        path=".".join(path),
        problem=f"{value!r} is not legal",
        hint=f"{elsewhere}legal: {', '.join(legal)}",
        sure=bool(elsewhere),
    )


def _others(dialect: Dialect) -> Iterator[Dialect]:
    return (other for other in DIALECTS if other is not dialect)
