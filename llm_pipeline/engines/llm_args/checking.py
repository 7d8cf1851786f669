"""Checking an LLM-args file against the recorded schema of a TensorRT-LLM version, before a GPU is touched.

A key that the version does not have is an error with what to write instead; what may be new in a version later than
the recorded ones is a warning. What no JSON schema says TensorRT-LLM refuses as it loads.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
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
    for error in _leaf_errors(schema, Draft202012Validator(schema).iter_errors(dict(document))):
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


def _leaf_errors(schema: Node, errors: Iterable[ValidationError]) -> Iterator[ValidationError]:
    """The errors, with those of a union replaced by those of the branch that shares most keys with what is there."""
    for error in errors:
        of_union = error.validator in ("anyOf", "oneOf") and isinstance(error.instance, dict)
        branches = list(_branches(schema, error.schema)) if of_union else []
        if not branches:
            yield error
            continue
        kind = error.instance.get(_DISCRIMINATOR)
        kinds = {name: branch for branch in branches for name in _kinds_of(branch)}
        if kinds and kind not in kinds:
            yield ValidationError(
                f"{kind!r} is not legal", validator="enum", validator_value=list(kinds), instance=kind,
                path=[*error.absolute_path, _DISCRIMINATOR],
            )  # fmt: skip
            continue
        meant = kinds.get(kind) or max(branches, key=lambda one: len(one.get("properties", {}).keys() & error.instance))
        inside = list(Draft202012Validator({**meant, "$defs": schema["$defs"]}).iter_errors(error.instance))
        for inner in inside:
            inner.parent = error  # it is at the place where the union stands
        yield from _leaf_errors(schema, inside)


def _branches(schema: Node, node: Node) -> Iterator[Node]:
    """The object schemas that a value here may have: references followed, unions opened."""
    if reference := node.get("$ref"):
        yield from _branches(schema, schema["$defs"][reference.rpartition("/")[2]])
    for branch in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from _branches(schema, branch)
    if "properties" in node or node.get("x-open"):
        yield node


def _kinds_of(branch: Node) -> list[str]:
    kinds: list[str] = branch.get("properties", {}).get(_DISCRIMINATOR, {}).get("enum", [])
    return kinds


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
