"""What configuration files may hold, said by the models: the reference for people, and JSON schemas for editors.

Run `python -m llm_pipeline.config.reference > configs/REFERENCE.md` after a change of the models. `llm-pipeline schema`
writes the schemas; what files say of each other, and some rules between keys, only `plan` checks.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticUndefined

from llm_pipeline.base.entry import entry_point
from llm_pipeline.base.yaml_document import CONFIG_BOUNDS
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.installed import type_of, with_our_kinds
from llm_pipeline.config.model import host_path
from llm_pipeline.config.policy import Policy
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.ranges import nested_models, range_of
from llm_pipeline.config.release import ReleaseConfig
from llm_pipeline.config.target import Target

CONFIG_FILES: dict[str, type[BaseModel]] = {
    "releases": ReleaseConfig,
    "targets": Target,
    "quantization": QuantizationRecipe,
    "policies": Policy,
    "deployments": Deployment,
}
SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_PLAIN_TEXT: Mapping[str, str] = {
    "BucketStore": "uri",
    "CalibrationSource": "dataset",
    "DirectoryStore": "uri",
    "Interpreter": "python",
}
"""Models that a file may have as a plain text, and the field that it stands for."""

_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n        .*)*)", re.MULTILINE)


def reference() -> str:
    """The whole reference as Markdown."""
    parts = [
        "# Configuration reference",
        "",
        (
            "Generated from the models by `python -m llm_pipeline.config.reference`. An unknown key is an error that "
            "names its file and line; units are in the names. `name` always comes from the file's name."
        ),
        "",
        (
            "Numbers have ranges, which stand behind their types; for a list or mapping, that of its values. Files are "
            f"UTF-8 of at most {CONFIG_BOUNDS.bytes // 1024} KiB and {CONFIG_BOUNDS.depth} levels. Tags (`!!str`), "
            "keys given twice, `.inf`, `.nan`, numbers in base 60 (`1:30`) or 8 (`010`), control characters and "
            "aliases within what has an anchor are refused; merge keys (`<<`) work."
        ),
        "",
        (
            "A path of type `HostPath` is relative to the file that has it. `$NAME` and `${NAME}` in it are "
            "environment variables, which must be set wherever the file is read; `~/` is the home directory, and `$$` "
            "a dollar sign."
        ),
    ]
    for folder in CONFIG_FILES:
        parts += ["", *folder_reference(folder)]
    return "\n".join(parts) + "\n"


def folder_reference(folder: str) -> Iterator[str]:
    """The part of the reference about one folder's files."""
    yield f"## `configs/{folder}/*.yaml`"
    yield from _sections(CONFIG_FILES[folder], "", set(), set())


def _sections(
    model: type[BaseModel], prefix: str, seen: set[type[BaseModel]], told: set[tuple[type, str]]
) -> Iterator[str]:
    """A model and those in it, each once, and so what several kinds have of one base."""
    seen.add(model)
    yield ""
    if prefix:
        yield f"### `{prefix}`"
        yield ""
    yield (inspect.getdoc(model) or "").split("\n\n")[0].replace("\n", " ")
    yield ""
    yield from _fields_table(model, told)
    for name, field in model.model_fields.items():
        for nested in nested_models(type_of(field)):
            if nested not in seen:
                yield from _sections(nested, f"{prefix}.{name}".lstrip("."), seen, told)


def _fields_table(model: type[BaseModel], told: set[tuple[type, str]]) -> Iterator[str]:
    """A model's own fields, without those of the models in them."""
    described = described_attributes(model)
    rows, above = [], []
    for name, field in model.model_fields.items():
        where = next(base for base in model.__mro__ if name in inspect.get_annotations(base)), name
        if name == "name":
            continue
        if where in told:
            above.append(f"`{name}`")
            continue
        told.add(where)
        meaning = described.get(name) or " ".join(_own_summary(field).split())
        rows.append(f"| `{name}` | {_type_name(field)} | {_default(field)} | {meaning} |".replace("  ", " "))
    if rows:
        yield from ("| key | type | default | meaning |", "|---|---|---|---|", *rows)
    if rows and above:
        yield ""
    if above:
        yield f"As above: {', '.join(above)}."


def described_attributes(model: type[BaseModel]) -> dict[str, str]:
    """What the docstrings of a model and its bases say of its fields, each in one line."""
    described: dict[str, str] = {}
    for base in reversed(model.__mro__):
        attributes = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2]
        described |= {name: " ".join(text.split()) for name, text in _ATTRIBUTE.findall(attributes)}
    return described


def _own_summary(field: FieldInfo) -> str:
    nested = list(nested_models(type_of(field)))
    return (inspect.getdoc(nested[0]) or "").split("\n\n")[0] if nested else ""


def _type_name(field: FieldInfo) -> str:
    allowed = range_of(field)
    text = "HostPath" if _is_host_path(field.metadata) else _written(type_of(field))
    return f"`{text}`".replace("|", "\\|") + (f" ({allowed})" if allowed else "")


def _written(annotation: Any) -> str:
    """A type as a person writes it, without its constraints."""
    annotation = with_our_kinds(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return "HostPath" if _is_host_path(arguments[1:]) else _written(arguments[0])
    if origin in (Union, UnionType):
        return " | ".join(map(_written, arguments))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(_written, arguments))}]"
    if annotation is Ellipsis:
        return "..."
    return "None" if annotation is type(None) else str(getattr(annotation, "__name__", annotation))


def _is_host_path(constraints: Iterable[object]) -> bool:
    return any(isinstance(item, AfterValidator) and item.func is host_path for item in constraints)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.default
    if isinstance(default, BaseModel):
        return "see below"
    return "" if default is PydanticUndefined else f"`{default!r}`"


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


@entry_point
def main() -> None:
    """Write the reference to stdout."""
    sys.stdout.write(reference())


if __name__ == "__main__":
    raise SystemExit(main())
