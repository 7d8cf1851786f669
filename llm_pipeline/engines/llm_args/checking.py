"""Checking an LLM-args file against the recorded schema of a TensorRT-LLM version, before a GPU is touched.

A key that the version does not have is an error with what to write instead; what may be new in a version later than
the recorded ones is a warning. What no JSON schema says TensorRT-LLM refuses as it loads.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from jsonschema import Draft202012Validator, ValidationError

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import Frozen
from llm_pipeline.engines.llm_args.recorded_schema import (
    Node,
    edition_of,
    is_later_than_recorded,
    is_older_than_recorded,
    recorded_schema,
)

_ALIKE = 0.5
_DISCRIMINATOR = "decoding_type"


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
    schema, later = recorded_schema(edition_of(version)), is_later_than_recorded(version)
    errors, uncertain = list[str](), list[str]()
    for refused in Draft202012Validator(schema).iter_errors(dict(document)):
        for error in _of_what_is_meant(refused):
            may_be_new = later and error.validator in ("additionalProperties", "enum")
            (uncertain if may_be_new else errors).extend(_problems(error, schema))
    if errors:
        return LlmArgsCheck(version=version, errors=tuple(sorted(errors)))
    warnings = []
    if is_older_than_recorded(version):
        warnings.append(f"the LLM args were recorded for 1.2.x: {version} may lack some of them")
    if later:
        warnings.append(f"the LLM args were recorded before {version}, which may have dropped some of them")
    return LlmArgsCheck(version=version, warnings=(*warnings, *sorted(uncertain)))


def _of_what_is_meant(error: ValidationError) -> Iterator[ValidationError]:
    """The error; or of a union those of the branch that fits best: of the kind that is named, and not `null`."""
    kinds = [one for one in error.context or () if one.validator == "enum" and [*one.path] == [_DISCRIMINATOR]]
    no_object = [one for one in error.context or () if one.validator == "type" and not one.path]
    others = {one.schema_path[0] for one in (*kinds, *no_object)}
    by_branch = groupby(error.context or (), lambda one: one.schema_path[0])
    branches = [list(one) for number, one in by_branch if number not in others]
    for one in min(branches, key=_misfit, default=()):
        yield from _of_what_is_meant(one)
    if kinds and not branches:
        kinds[0].validator_value = [kind for one in kinds for kind in one.validator_value]
    if not branches:
        yield (*kinds, error)[0]


def _misfit(branch: list[ValidationError]) -> tuple[bool, int]:
    """Keys that are another branch's say more than values."""
    return any(one.validator == "additionalProperties" for one in branch), len(branch)


def _problems(error: ValidationError, schema: Node) -> Iterator[str]:
    """What is wrong, and what to write instead."""
    path = tuple(str(part) for part in error.absolute_path)
    if error.validator == "enum":
        legal = ", ".join(sorted(str(one) for one in error.validator_value if one is not None))
        yield f"{'.'.join(path)}: {error.instance!r} is not legal -> legal: {legal}"
        return
    if error.validator != "additionalProperties":
        yield f"{'.'.join(path)}: {error.message}"
        return
    known = set(error.schema.get("properties", ()))
    for key in sorted(set(map(str, error.instance)) - known):
        moved = schema["x-known-wrong-keys"].get(key) if not path else None
        alike = difflib.get_close_matches(key, sorted(known), n=2, cutoff=_ALIKE)
        advice = moved or (f"did you mean {' or '.join(alike)}?" if alike else "")
        yield f"{'.'.join((*path, key))}: unknown key" + (f" -> {advice}" if advice else "")
