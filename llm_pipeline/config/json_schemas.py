"""JSON schemas of the configuration files, from which editors complete; `llm-pipeline schema` writes them.

They say what a key may hold. What files say of each other, and some rules between keys, only `plan` checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from llm_pipeline.config.reference import CONFIG_FILES, described_attributes

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_PLAIN_TEXT: Mapping[str, str] = {
    "BucketStore": "uri",
    "CalibrationSource": "dataset",
    "DirectoryStore": "uri",
    "Interpreter": "python",
}
"""Models that a file may have as a plain text, and the field that it stands for."""


class _DescribedSchema(GenerateJsonSchema):
    """Says of each key what the reference says of it."""

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        made = super().model_schema(schema)
        model, properties = schema["cls"], made.get("properties", {})
        for name, text in described_attributes(model).items():
            if name in properties:
                properties[name].setdefault("description", text)
        return {"anyOf": [properties[_PLAIN_TEXT[model.__name__]], made]} if model.__name__ in _PLAIN_TEXT else made

    def tagged_union_schema(self, schema: Any) -> JsonSchemaValue:
        """A text, or settings whose kind no field names, may fit several."""
        made = super().tagged_union_schema(schema)
        return made if "discriminator" in made else {"anyOf": made["oneOf"]}


def json_schema(folder: str) -> dict[str, Any]:
    """The schema of the files of one folder of `configs/`; `name` is left to the file's name."""
    made = CONFIG_FILES[folder].model_json_schema(schema_generator=_DescribedSchema)
    required = [key for key in made.get("required", []) if key != "name"]
    return {"$schema": SCHEMA_DIALECT, **made, "required": required}


def json_schemas() -> dict[str, dict[str, Any]]:
    """The schemas of all folders, by the folder."""
    return {folder: json_schema(folder) for folder in CONFIG_FILES}
