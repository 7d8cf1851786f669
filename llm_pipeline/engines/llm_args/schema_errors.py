"""What the recorded schemas refuse of a value: the keywords of JSON Schema 2020-12 that they use, and no more.

The jsonschema package gives the same errors in the same words, which a test holds this to; it takes 0.2 s to import,
a seventh of what `plan` takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, starmap
from typing import Any

Node = Mapping[str, Any]
"""A schema or a part of one."""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and float(value).is_integer(),
    "null": lambda value: value is None,
    "number": _is_number,
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}

_LIMITS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (lambda value, limit: value >= limit, "less than the minimum of"),
    "maximum": (lambda value, limit: value <= limit, "greater than the maximum of"),
    "exclusiveMinimum": (lambda value, limit: value > limit, "less than or equal to the minimum of"),
    "exclusiveMaximum": (lambda value, limit: value < limit, "greater than or equal to the maximum of"),
}

CHECKED = frozenset(
    {*_LIMITS, "$ref", "additionalProperties", "anyOf", "const", "enum", "items", "maxItems", "minItems", "minLength",
     "not", "oneOf", "pattern", "properties", "required", "type", "uniqueItems"}
)  # fmt: skip
"""The keywords that refuse a value; all others in the recorded schemas only say something of it."""


@dataclass(frozen=True)
class SchemaError:
    """A value that a keyword of a schema refuses.

    Attributes:
        path: Where the value stands in the document.
        keyword: What refuses it.
        value: The value.
        schema: The schema that has the keyword.
        message: Both, in words.
    """

    path: tuple[str, ...]
    keyword: str
    value: Any
    schema: Node
    message: str


def schema_errors(value: object, schema: Node, root: Node, path: tuple[str, ...] = ()) -> Iterator[SchemaError]:
    """All that a schema refuses of a value and of what is in it.

    Args:
        value: What YAML or JSON made of the text.
        schema: The schema, or a part of one.
        root: The document whose `$defs` its references name.
        path: Where the value stands.
    """
    for keyword, wanted in schema.items():
        if keyword == "$ref":
            yield from schema_errors(value, root["$defs"][wanted.rpartition("/")[2]], root, path)
        elif keyword in ("properties", "additionalProperties", "items"):
            yield from _inside(keyword, value, schema, root, path)
        elif keyword in CHECKED:
            for message in _refusals(keyword, wanted, value, root):
                yield SchemaError(path, keyword, value, schema, message)


def _inside(keyword: str, value: Any, schema: Node, root: Node, path: tuple[str, ...]) -> Iterator[SchemaError]:
    wanted = schema[keyword]
    if keyword == "items":
        for index, one in enumerate(value if isinstance(value, list) else ()):
            yield from schema_errors(one, wanted, root, (*path, str(index)))
    elif isinstance(value, dict):
        named = schema.get("properties", {})
        if keyword == "properties":
            inside = [(key, one) for key, one in named.items() if key in value]
        elif wanted is False:
            if not set(value) <= set(named):
                yield SchemaError(path, keyword, value, schema, "Additional properties are not allowed")
            return
        else:
            inside = [(key, wanted) for key in value if key not in named and wanted is not True]
        for key, one in inside:
            yield from schema_errors(value[key], one, root, (*path, str(key)))


def _refusals(keyword: str, wanted: Any, value: Any, root: Node) -> Iterator[str]:
    """Why a keyword that looks at the value alone refuses it."""
    if keyword == "required":
        missing = (key for key in wanted if isinstance(value, dict) and key not in value)
        yield from (f"{key!r} is a required property" for key in missing)
    elif keyword in _LIMITS:
        holds, words = _LIMITS[keyword]
        if _is_number(value) and not holds(value, wanted):
            yield f"{value!r} is {words} {wanted!r}"
    elif message := _refusal(keyword, wanted, value, root):
        yield f"{value!r} {message}" if keyword != "const" else message


def _refusal(keyword: str, wanted: Any, value: Any, root: Node) -> str | None:  # noqa: PLR0911 - a keyword a line
    match keyword:
        case "type":
            names = [wanted] if isinstance(wanted, str) else wanted
            fits = any(_TYPES[name](value) for name in names)
            return None if fits else f"is not of type {', '.join(map(repr, names))}"
        case "enum":
            return None if any(_same(value, one) for one in wanted) else f"is not one of {wanted!r}"
        case "const":
            return None if _same(value, wanted) else f"{wanted!r} was expected"
        case "anyOf" | "oneOf":
            fitting = [one for one in wanted if _fits(value, one, root)]
            several = keyword == "oneOf" and len(fitting) > 1
            return None if len(fitting) == 1 or (fitting and not several) else _of_union(fitting)
        case "not":
            return f"should not be valid under {wanted!r}" if _fits(value, wanted, root) else None
        case "pattern":
            return f"does not match {wanted!r}" if isinstance(value, str) and not re.search(wanted, value) else None
        case "uniqueItems":
            twice = wanted and isinstance(value, list) and any(starmap(_same, combinations(value, 2)))
            return "has non-unique elements" if twice else None
    return _length_refusal(keyword, wanted, value)


def _length_refusal(keyword: str, wanted: int, value: Any) -> str | None:
    if not isinstance(value, str if keyword == "minLength" else list):
        return None
    if keyword == "maxItems":
        return "is too long" if len(value) > wanted else None
    return ("should be non-empty" if wanted == 1 else "is too short") if len(value) < wanted else None


def _of_union(fitting: list[Node]) -> str:
    if not fitting:
        return "is not valid under any of the given schemas"
    return f"is valid under each of {', '.join(map(repr, (*fitting[1:], fitting[0])))}"


def _fits(value: object, schema: Node, root: Node) -> bool:
    return next(schema_errors(value, schema, root), None) is None


def _same(one: object, other: object) -> bool:
    """Equal as JSON has it: true is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)
