"""The errors of the recorded schemas, held to those that the jsonschema package finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from llm_pipeline.engines.llm_args.dialects import DIALECTS
from llm_pipeline.engines.llm_args.recorded_schema import recorded_schema
from llm_pipeline.engines.llm_args.schema_errors import CHECKED, schema_errors

SAMPLES = (
    None, True, False, 0, 1, -1, 1.0, 2.5, 1e9, "", "auto", "fp8", "no such word", [], [1], [1, 1], [True, 1],
    ["a"] * 40, {}, {"unknown": 1}, {"decoding_type": "Eagle"},
)  # fmt: skip
KEYWORDS = {
    "$defs": {"even": {"type": "integer", "minimum": 2}},
    "type": "object",
    "required": ["a", "b"],
    "properties": {
        "a": {"oneOf": [{"type": "integer"}, {"minimum": 1}]},
        "b": {"const": 1},
        "c": {"type": "array", "minItems": 2, "maxItems": 3, "uniqueItems": True, "items": {"$ref": "#/$defs/even"}},
        "d": {"type": ["string", "null"], "minLength": 1, "pattern": "^f"},
        "e": {"not": {"type": "string"}, "exclusiveMinimum": 0, "exclusiveMaximum": 2.5},
        "f": {"type": "object", "additionalProperties": {"type": "string", "minLength": 3}},
    },
    "additionalProperties": False,
}


def objects(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each schema of an object that has properties, by itself."""
    yield document
    for part in document["$defs"].values():
        yield {**part, "$defs": document["$defs"]}


def reference(schema: dict[str, Any], value: object) -> set[tuple[object, ...]]:
    """What jsonschema finds, less its words for unknown keys: the check has its own."""
    found = Draft202012Validator(schema).iter_errors(value)
    return {
        (tuple(map(str, error.absolute_path)), error.validator, _words(str(error.validator), error.message))
        for error in found
    }


def ours(schema: dict[str, Any], value: object) -> set[tuple[object, ...]]:
    found = schema_errors(value, schema, schema)
    return {(error.path, error.keyword, _words(error.keyword, error.message)) for error in found}


def _words(keyword: str, message: str) -> str:
    return "" if keyword == "additionalProperties" else message


@pytest.mark.parametrize("schema", [recorded_schema(dialect).document for dialect in DIALECTS] + [KEYWORDS])
def test_every_key_refuses_what_jsonschema_refuses(schema):
    compared = refused = 0
    for part in objects(schema):
        for key in (*part.get("properties", ()), "unknown"):
            for sample in SAMPLES:
                expected = reference(part, {key: sample})
                assert ours(part, {key: sample}) == expected, (key, sample)
                compared, refused = compared + 1, refused + bool(expected)
    assert compared >= refused > compared / 4


def test_the_recorded_schemas_use_no_keyword_that_is_not_checked():
    assertions = set(Draft202012Validator.VALIDATORS) - {"$dynamicRef", "format"}
    for dialect in DIALECTS:
        assert assertions & _keywords(recorded_schema(dialect).document) <= CHECKED


def _keywords(node: dict[str, Any]) -> set[str]:
    found = set(node)
    for key, inside in node.items():
        if key in ("properties", "$defs"):
            found.update(*map(_keywords, inside.values()))
        elif key in ("anyOf", "oneOf", "allOf"):
            found.update(*map(_keywords, inside))
        elif key in ("items", "additionalProperties", "not") and isinstance(inside, dict):
            found |= _keywords(inside)
    return found
