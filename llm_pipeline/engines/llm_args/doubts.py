"""What the recording of the LLM args is not sure of, in the keys that a file uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llm_pipeline.engines.llm_args.problem import Problem
from llm_pipeline.engines.llm_args.recorded_schema import Node, RecordedSchema


def doubts(document: Mapping[str, Any], schema: RecordedSchema) -> Iterator[Problem]:
    """Warnings of a legal file: keys read in a neighbouring version only, classes not read, keys on their way out."""
    yield from _of_mapping(schema.document, document, (), schema)


def _of_mapping(
    node: Node, value: Mapping[str, Any], path: tuple[str, ...], schema: RecordedSchema
) -> Iterator[Problem]:
    where = ".".join(path)
    if node.get("x-open"):
        yield Problem(path=where, problem="these keys are not recorded and were not checked")
    for mark in ("x-read", "x-seen"):
        if path and mark in node:
            yield Problem(path=where, problem=f"not read in the version itself ({node[mark]})")
    for key, given in value.items():
        if key in node.get("properties", {}):
            yield from _of_key(node["properties"][key], given, (*path, key), schema)


def _of_key(node: Node, value: Any, path: tuple[str, ...], schema: RecordedSchema) -> Iterator[Problem]:
    where = ".".join(path)
    if seen := node.get("x-seen"):
        yield Problem(path=where, problem=f"not read in the version itself ({seen})")
    if (node.get("x-status") == "deprecated" or node.get("deprecated")) and value != node.get("default"):
        yield Problem(path=where, problem="deprecated in this version")
    effective = node.get("x-effective-values") or node.get("x-known-values")
    if effective and value is not None and str(value).lower() not in {known.lower() for known in effective}:
        yield Problem(
            path=where, problem=f"{value!r} is not known to do anything", hint=f"known: {', '.join(effective)}"
        )
    if isinstance(value, Mapping) and (branch := schema.branch_for(node, dict(value))):
        yield from _of_mapping(branch, value, path, schema)
