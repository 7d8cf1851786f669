"""A recorded schema of the LLM args: what is legal under a key, and how sure that is.

Marks in the files: `x-seen` and `x-read` say that a key or a class was read in a neighbouring version only, `x-open`
that a class was not read, `x-status: deprecated` that a key is on its way out, `x-discriminator` which key picks the
class of a union.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from llm_pipeline.engines.llm_args.dialects import Dialect

_SUCCESSOR = re.compile(r"\(-> (.+?)\)")

Node = dict[str, Any]
"""A schema or a part of one."""


class RecordedSchema:
    """The recorded schema of one dialect.

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

    def successor(self, key: str) -> str | None:
        """What took the place of a key that an earlier version had, if that is recorded."""
        removed = (line for line in self.document.get("x-removed-since-1.2", ()) if key in line.split())
        found = (_SUCCESSOR.search(line) for line in removed)
        return next((match[1] for match in found if match), None)

    def wrong_key(self, key: str) -> str | None:
        """What to write in place of a top-level key that users are known to get wrong."""
        advice: str | None = self.document["x-known-wrong-keys"].get(key)
        return advice

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
def recorded_schema(dialect: Dialect) -> RecordedSchema:
    """The schema that is recorded for a dialect."""
    path = files("llm_pipeline.engines.llm_args").joinpath("data", f"{dialect.schema}.json")
    return RecordedSchema(json.loads(path.read_text(encoding="utf-8")))
