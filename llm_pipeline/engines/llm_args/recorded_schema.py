"""The recorded schemas of the LLM args: two editions, and what is legal under a key.

Marks in the files say how certain a key is: `x-seen` and `x-read` that it was read in a neighbouring version only,
`x-open` that a class was not read, `x-status: deprecated` that it is about to be removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from llm_pipeline.base.errors import Unsupported

_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:rc(\d+))?")
_FINAL = 10_000
"""Sorts a final release after all of its candidates."""

_FIRST_OF_MAIN = "1.3.0rc22"
_LAST_RECORDED = "1.3.0rc26"
"""The reference of 1.3.0rc27 has values that the recorded file of main lacks (`DFlash` drafts by `FA4`)."""

Node = dict[str, Any]
"""A schema or a part of one."""


Edition = Literal["1.2.x", "main"]
EDITIONS: dict[Edition, str] = {"1.2.x": "llm_args_1_2", "main": "llm_args_main"}
"""The recorded schemas by the versions that they stand for."""


def edition_of(version: str) -> Edition:
    """The edition that a version of TensorRT-LLM reads.

    Raises:
        Unsupported: It is older than 1.0, or one of the candidates of 1.3 between the two editions.
    """
    release = _release(version)
    if (1, 0) <= release[:2] <= (1, 2):
        return "1.2.x"
    if release >= _release(_FIRST_OF_MAIN):
        return "main"
    raise Unsupported(
        f"the LLM args of TensorRT-LLM {version} are not recorded",
        where="target.runtime_version",
        hint=f"use 1.2.1, or {_FIRST_OF_MAIN} or later",
    )


def is_older_than_recorded(version: str) -> bool:
    """Whether a version may lack LLM args of its edition."""
    return _release(version) < (1, 2)


def is_later_than_recorded(version: str) -> bool:
    """Whether a version may have LLM args that no recorded edition has."""
    return _release(version) > _release(_LAST_RECORDED)


def _release(version: str) -> tuple[int, ...]:
    """`1.3.0rc22` as numbers that sort; none when it is no version."""
    found = _VERSION.match(version)
    if found is None:
        return ()
    major, minor, patch, candidate = found.groups()
    return int(major), int(minor), int(patch or 0), int(candidate or _FINAL)


class RecordedSchema:
    """The recorded schema of one edition.

    Attributes:
        document: The JSON schema, draft 2020-12.
    """

    def __init__(self, document: Node) -> None:
        self.document = document

    def branches(self, node: Node) -> Iterator[Node]:
        """The object schemas that a value here may have: references followed, unions opened."""
        if reference := node.get("$ref"):
            yield from self.branches(self.document["$defs"][reference.rpartition("/")[2]])
        for union in ("anyOf", "oneOf"):
            for branch in node.get(union, ()):
                yield from self.branches(branch)
        if "properties" in node or node.get("x-open"):
            yield node

    def branch_for(self, node: Node, value: Node) -> Node | None:
        """The object schema that a mapping here is meant for: by the discriminator, else by the keys they share."""
        found = list(self.branches(node))
        named = [branch for branch in found if _accepts_discriminator(branch, value)]
        return max(named or found, key=lambda branch: len(set(branch.get("properties", ())) & set(value)), default=None)

    def legal_keys(self, path: tuple[str, ...]) -> set[str]:
        """All keys that are legal under a path in any of the classes that may stand there."""
        return {key for node in self._nodes(path) for branch in self.branches(node) for key in _properties(branch)}

    def legal_values(self, path: tuple[str, ...]) -> set[object]:
        """All values that enumerations at a path list; empty where there is none."""
        return {value for node in self._nodes(path) for option in self._options(node) for value in option}

    def places_of(self, key: str) -> list[str]:
        """Where a key is legal, as dotted paths of at most two keys; keys of speculation classes are left out."""
        top = _properties(self.document)
        nested = [
            f"{outer}.{key}"
            for outer, node in top.items()
            if outer != "speculative_config" and key in self.legal_keys((outer,))
        ]
        return ([key] if key in top else []) + nested

    def _options(self, node: Node) -> Iterator[list[object]]:
        """The enumerations of a value: its own, and those behind references and unions."""
        if reference := node.get("$ref"):
            yield from self._options(self.document["$defs"][reference.rpartition("/")[2]])
        for union in ("anyOf", "oneOf"):
            for branch in node.get(union, ()):
                yield from self._options(branch)
        if "enum" in node:
            yield node["enum"]

    def _nodes(self, path: tuple[str, ...]) -> list[Node]:
        nodes = [self.document]
        for key in path:
            nodes = [
                _properties(branch)[key]
                for node in nodes
                for branch in self.branches(node)
                if key in _properties(branch)
            ]
        return nodes


def _properties(node: Node) -> dict[str, Node]:
    properties: dict[str, Node] = node.get("properties", {})
    return properties


def _accepts_discriminator(branch: Node, value: Node) -> bool:
    return value.get("decoding_type") in _properties(branch).get("decoding_type", {}).get("enum", ())


@cache
def recorded_schema(edition: Edition) -> RecordedSchema:
    """The schema that is recorded for an edition."""
    path = files("llm_pipeline.engines.llm_args").joinpath("data", f"{EDITIONS[edition]}.json")
    return RecordedSchema(json.loads(path.read_text(encoding="utf-8")))
