"""JSON schemas of configuration models, with the words of their docstrings, and what stands where in them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

Schema = Mapping[str, Any]

_PLAIN_TEXT: Mapping[str, str] = {"BucketStore": "uri", "DirectoryStore": "uri", "Interpreter": "python"}
"""Models that a file may have as a plain text, and the field that it stands for."""

_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n        .*)*)", re.MULTILINE)


class _DescribedSchema(GenerateJsonSchema):
    """Says of each key what the docstring of its model says of it."""

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        made = super().model_schema(schema)
        model, properties = schema["cls"], made.get("properties", {})
        for base in reversed(model.__mro__):
            attributes = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2]
            for name, text in _ATTRIBUTE.findall(attributes):
                if name in properties:
                    properties[name]["description"] = " ".join(text.split())
        return {"anyOf": [properties[_PLAIN_TEXT[model.__name__]], made]} if model.__name__ in _PLAIN_TEXT else made


def schema_of(model: type[BaseModel]) -> Schema:
    """The JSON schema of a model's files."""
    return model.model_json_schema(schema_generator=_DescribedSchema)


def kinds_in(schema: Schema, whole: Schema) -> Iterator[Schema]:
    """What a value may be: each kind of it by itself, in order, with references into the whole schema resolved."""
    if "$ref" in schema:
        yield from kinds_in(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    elif one_of := schema.get("anyOf") or schema.get("oneOf"):
        for one in one_of:
            yield from kinds_in(one, whole)
    else:
        yield schema


def values_in(schema: Schema) -> list[Schema]:
    """What the values of a mapping may be, or the items of a list; empty for anything else."""
    inner = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties"), schema.get("items")]
    return [one for one in (*inner, *schema.get("prefixItems", ())) if isinstance(one, dict)]


def schemas_at(whole: Schema, location: tuple[int | str, ...]) -> list[Schema]:
    """Of each kind that a value may be at a location, the schema; names of kinds in the location are passed over."""
    found = [*kinds_in(whole, whole)]
    for part in location:
        inner = [one["properties"][part] for one in found if part in one.get("properties", {})]
        inner = inner or [value for one in found if "properties" not in one for value in values_in(one)]
        found = [kind for one in inner for kind in kinds_in(one, whole)] or found
    return found


def range_of(schema: Schema, whole: Schema) -> str:
    """`1 to 20`, `0.5 to less than 1`; the range of the values for a collection, and empty for what is no number."""
    for kind in kinds_in(schema, whole):
        if kind.get("type") in ("number", "integer"):
            below = f"less than {_number(kind['exclusiveMaximum'])}" if "exclusiveMaximum" in kind else ""
            return f"{_number(kind['minimum'])} to {below or _number(kind['maximum'])}" if "minimum" in kind else ""
        for value in values_in(kind):
            if found := range_of(value, whole):
                return found
    return ""


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.10g}"
