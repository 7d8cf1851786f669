"""The JSON schema of a real `TorchLlmArgs` against the recorded one. Pure.

Classes are compared by name. Descriptions and bounds are left alone: what makes a file legal is its keys, their types
and their listed values; defaults are compared where both schemas state a plain one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from llm_pipeline.engines.llm_args.recorded_schema import Node

_ROOT = "LLM args"
_ANY = "any"
_UNIONS = ("anyOf", "oneOf", "allOf")


def schema_differences(recorded: Node, installed: Node) -> tuple[str, ...]:
    """How an installed schema differs from a recorded one, one line each; keys and classes that are gone come first."""
    ours, theirs = _classes(recorded), _classes(installed)
    gone = [f"class {name}: recorded, not installed" for name in sorted(ours.keys() - theirs.keys())]
    new = [f"class {name}: installed, not recorded" for name in sorted(theirs.keys() - ours.keys())]
    missing, changed, added = list[str](), list[str](), list[str]()
    for name in (name for name in ours if name in theirs):
        if ours[name].get("x-open"):
            continue
        before, after = _properties(ours[name]), _properties(theirs[name])
        missing += [f"{name}.{key}: recorded, not installed{_doubt(before[key])}" for key in before if key not in after]
        added += [f"{name}.{key}: installed, not recorded ({_show(after[key], installed)})"
                  for key in after if key not in before]  # fmt: skip
        for key in (key for key in before if key in after):
            changed += [f"{name}.{key}: {line}" for line in _changes(before[key], recorded, after[key], installed)]
        if ours[name].get("additionalProperties") is False and theirs[name].get("additionalProperties") is not False:
            changed.append(f"{name}: unknown keys are refused as recorded, accepted as installed")
    return (*gone, *missing, *changed, *added, *new)


def _classes(schema: Node) -> dict[str, Node]:
    """The object schemas by class name, the whole first; enumerations are compared where they are used."""
    nested = {name: node for name, node in schema.get("$defs", {}).items() if "properties" in node or _is_open(node)}
    return {_ROOT: schema, **nested}


def _is_open(node: Node) -> bool:
    return bool(node.get("x-open")) or node.get("type") == "object"


def _properties(node: Node) -> Mapping[str, Node]:
    properties: dict[str, Node] = node.get("properties", {})
    return properties


def _changes(before: Node, recorded: Node, after: Node, installed: Node) -> Iterator[str]:
    ours, theirs = _kinds(before, recorded), _kinds(after, installed)
    if ours != theirs and _ANY not in ours | theirs:
        yield f"{_listed(ours)} recorded, {_listed(theirs)} installed"
    is_plain = "default" in before and not isinstance(after.get("default", {}), dict)  # pydantic spells classes out
    if is_plain and before["default"] != after["default"]:
        yield f"default {json.dumps(before['default'])} recorded, {json.dumps(after['default'])} installed"


def _kinds(node: Node, schema: Node) -> frozenset[str]:
    """What a value may be: names of types and classes, and listed values as JSON."""
    if reference := node.get("$ref"):
        name = str(reference).rpartition("/")[2]
        target: Node = schema.get("$defs", {}).get(name, {})
        return frozenset({name}) if "properties" in target or _is_open(target) else _kinds(target, schema)
    if "enum" in node or "const" in node:
        return frozenset(json.dumps(value) for value in node.get("enum", [node.get("const")]))
    if union := next((node[name] for name in _UNIONS if name in node), None):
        return frozenset(kind for branch in union for kind in _kinds(branch, schema))
    types = node.get("type", _ANY)
    return frozenset([types] if isinstance(types, str) else types)


def _listed(kinds: frozenset[str]) -> str:
    return "|".join(sorted(kinds))


def _show(node: Node, schema: Node) -> str:
    kinds = _listed(_kinds(node, schema))
    return f"{kinds}, default {json.dumps(node['default'])}" if "default" in node else kinds


def _doubt(node: Node) -> str:
    return f" (recorded with a doubt: {node['x-seen']})" if "x-seen" in node else ""
