"""What configuration files may hold, said by the models: the reference for people, and JSON schemas for editors.

Run `llm-pipeline schema --text > configs/REFERENCE.md` after a change of the models. `llm-pipeline schema` writes the
schemas; what files say of each other, and some rules between keys, only `plan` checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from llm_pipeline.base.yaml_document import CONFIG_BOUNDS
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.policy import Policy
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.release import ReleaseConfig
from llm_pipeline.config.schemas import Schema, kinds_in, range_of, schema_of, values_in
from llm_pipeline.config.target import Target

CONFIG_FILES: dict[str, type[BaseModel]] = {
    "releases": ReleaseConfig,
    "targets": Target,
    "quantization": QuantizationRecipe,
    "policies": Policy,
    "deployments": Deployment,
}
SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def reference() -> str:
    """The whole reference as Markdown."""
    parts = [
        "# Configuration reference",
        "",
        (
            "Generated from the models by `llm-pipeline schema --text`. An unknown key is an error that names its file "
            "and line; units are in the names. `name` always comes from the file's name."
        ),
        "",
        (
            "Numbers have ranges, which stand behind their types; for a list or mapping, that of its values. Files are "
            f"UTF-8 of at most {CONFIG_BOUNDS.bytes // 1024} KiB and {CONFIG_BOUNDS.depth} levels. Tags (`!!str`), "
            "keys given twice, `.inf`, `.nan` and aliases within what has an anchor are refused; merge keys (`<<`) "
            "work. It is YAML 1.1: write numbers in base 60 (`1:30`) or 8 (`010`) in quotes if they are texts."
        ),
        "",
        (
            "A `path` is relative to the file that has it. `$NAME` and `${NAME}` in it are environment variables, "
            "which must be set wherever the file is read; `~/` is the home directory, and `$$` a dollar sign."
        ),
    ]
    for folder in CONFIG_FILES:
        parts += ["", *folder_reference(folder)]
    return "\n".join(parts) + "\n"


def folder_reference(folder: str) -> Iterator[str]:
    """The part of the reference about one folder's files."""
    yield f"## `configs/{folder}/*.yaml`"
    schema = json_schema(folder)
    yield from _sections(schema, schema, "", set(), set())


def _sections(schema: Schema, whole: Schema, prefix: str, seen: set[str], told: set[str]) -> Iterator[str]:
    """A model and those in it, each once, and so the keys that several kinds have alike."""
    seen.add(schema["title"])
    yield ""
    if prefix:
        yield f"### `{prefix}`"
        yield ""
    yield schema.get("description", "").split("\n\n")[0].replace("\n", " ")
    yield ""
    properties = {name: part for name, part in schema["properties"].items() if name != "name"}
    rows = {name: _row(name, part, schema, whole) for name, part in properties.items()}
    new = [row for row in rows.values() if row not in told]
    if new:
        yield from ("| key | type | default | meaning |", "|---|---|---|---|", *new)
    if above := [f"`{name}`" for name, row in rows.items() if row in told]:
        yield ""
        yield f"As above: {', '.join(above)}."
    told.update(new)
    for name, part in properties.items():
        for model in _models_in(part, whole):
            if model["title"] not in seen:
                yield from _sections(model, whole, f"{prefix}.{name}".lstrip("."), seen, told)


def _models_in(part: Schema, whole: Schema) -> Iterator[Schema]:
    for kind in kinds_in(part, whole):
        if "properties" in kind:
            yield kind
        for value in values_in(kind):
            yield from _models_in(value, whole)


def _row(name: str, part: Schema, schema: Schema, whole: Schema) -> str:
    kinds, allowed = _kinds(part, whole), range_of(part, whole)
    written = f"`{kinds}`".replace("|", "\\|") + (f" ({allowed})" if allowed else "")
    value = part.get("default")
    default = "see below" if isinstance(value, dict) and value else f"`{value!r}`"
    default = "required" if name in schema.get("required", ()) else default
    told = part.get("description") or next((model["description"] for model in _models_in(part, whole)), "")
    meaning = " ".join(told.split("\n\n")[0].split())
    return f"| `{name}` | {written} | {default} | {meaning} |".replace("  ", " ")


def _kinds(part: Schema, whole: Schema) -> str:
    """The kinds that a value may be, as a person writes them, without their constraints."""
    return " | ".join(dict.fromkeys(_kind(kind, whole) for kind in kinds_in(part, whole)))


def _kind(kind: Schema, whole: Schema) -> str:
    if "properties" in kind:
        return str(kind["title"])
    if words := kind.get("enum") or ([kind["const"]] if "const" in kind else []):
        return " | ".join(map(repr, words))
    inside = ", ".join(_kinds(value, whole) for value in values_in(kind))
    match kind.get("type"):
        case "array":
            return f"list[{inside}]"
        case "object":
            keys = " | ".join(kind.get("propertyNames", {}).get("enum", ()))
            return f"mapping[{keys}{': ' if keys else ''}{inside or 'any'}]"
        case "null":
            return "None"
        case other:
            return str(kind.get("format") or other or "any")


def json_schema(folder: str) -> dict[str, Any]:
    """The schema of the files of one folder of `configs/`; `name` is left to the file's name."""
    made = schema_of(CONFIG_FILES[folder])
    required = [key for key in made.get("required", []) if key != "name"]
    return {"$schema": SCHEMA_DIALECT, **made, "required": required}


def json_schemas() -> dict[str, dict[str, Any]]:
    """The schemas of all folders, by the folder."""
    return {folder: json_schema(folder) for folder in CONFIG_FILES}
