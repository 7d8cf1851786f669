"""The configuration reference, generated from the models: `configs/REFERENCE.md` is its output.

Run `python -m llm_pipeline.config.reference > configs/REFERENCE.md` after a change of the models.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.policy import Policy
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.release import ReleaseConfig
from llm_pipeline.config.target import Target
from llm_pipeline.config.triton_names import TRITON_NAMES
from llm_pipeline.entry import entry_point

_FILES: dict[str, type[BaseModel]] = {
    "releases": ReleaseConfig,
    "targets": Target,
    "quantization": QuantizationRecipe,
    "policies": Policy,
    "deployments": Deployment,
}
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
    ]
    for folder, model in _FILES.items():
        parts += ["", f"## `configs/{folder}/*.yaml`", *_sections(model, "", set())]
    parts += ["", "## A target's options in Triton's words", "", *_triton_names()]
    return "\n".join(parts) + "\n"


def _triton_names() -> Iterator[str]:
    yield "Fields and parameters of `config.pbtxt` for TensorRT-LLM engines, the models of the in-flight batcher set."
    yield ""
    yield "| option | field or parameter | models | unit there |"
    yield "|---|---|---|---|"
    for name in TRITON_NAMES:
        yield f"| `{name.option}` | `{name.place}` | {', '.join(name.models)} | {name.unit} |"


def _sections(model: type[BaseModel], prefix: str, seen: set[type[BaseModel]]) -> Iterator[str]:
    seen.add(model)
    yield ""
    if prefix:
        yield f"### `{prefix}`"
        yield ""
    yield (inspect.getdoc(model) or "").split("\n\n")[0].replace("\n", " ")
    yield ""
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    described = dict(_ATTRIBUTE.findall(_attributes(model)))
    for name, field in model.model_fields.items():
        if name == "name":
            continue
        meaning = " ".join(described.get(name, _own_summary(field)).split())
        yield f"| `{name}` | {_type_name(field)} | {_default(field)} | {meaning} |".replace("  ", " ")
    for name, field in model.model_fields.items():
        for nested in _nested_models(field.annotation):
            if nested not in seen:
                yield from _sections(nested, f"{prefix}.{name}".lstrip("."), seen)


def _attributes(model: type[BaseModel]) -> str:
    documentation = inspect.cleandoc(model.__doc__ or "")
    return documentation.partition("Attributes:\n")[2]


def _own_summary(field: FieldInfo) -> str:
    nested = list(_nested_models(field.annotation))
    return (inspect.getdoc(nested[0]) or "").split("\n\n")[0] if nested else ""


def _nested_models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _nested_models(argument)


def _type_name(field: FieldInfo) -> str:
    text = str(field.annotation) if get_args(field.annotation) else getattr(field.annotation, "__name__", "")
    text = re.sub(r"typing\.|llm_pipeline\.[\w.]+\.|, FieldInfo\([^)]*\)|, StringConstraints\([^)]*\)", "", text)
    text = re.sub(r"Annotated\[([^,\]]+)[^\]]*\]", r"\1", text)
    limits = [str(item) for item in field.metadata if re.fullmatch(r"(Ge|Gt|Le|Lt)\(.*\)", str(item))]
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [re.sub(r"(\w+)\(\w+=(.*)\)", lambda m: f"{signs[m[1].lower()]} {m[2]}", limit) for limit in limits]
    return f"`{text}`".replace("|", "\\|") + (f" ({', '.join(bounds)})" if bounds else "")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.default
    if isinstance(default, BaseModel):
        return "see below"
    return "" if default is PydanticUndefined else f"`{default!r}`"


@entry_point
def main() -> None:
    """Write the reference to stdout."""
    sys.stdout.write(reference())


if __name__ == "__main__":
    raise SystemExit(main())
