"""The range of a number in a configuration model, as its type says it: for errors and for the reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from llm_pipeline.config.installed import type_of, with_our_kinds


def range_of(field: FieldInfo) -> str:
    """`1 to 20`, `0.5 to less than 1`; the range of the items for a collection, and empty for what is not a number."""
    return _range([*_constraints(field.annotation), *field.metadata])


def range_at(model: type[BaseModel], location: tuple[int | str, ...]) -> str:
    """The range of the value at a location within a model; empty if it has none."""
    models, found = [model], None
    for part in location:
        fields = [field for one in models if (field := one.model_fields.get(str(part)))]
        if fields:
            found = fields[0]
            models = [nested for field in fields for nested in nested_models(type_of(field))]
    return range_of(found) if found else ""


def nested_models(annotation: object) -> Iterator[type[BaseModel]]:
    """The models in an annotation, in its order."""
    annotation = with_our_kinds(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from nested_models(argument)


def _constraints(annotation: Any) -> Iterator[object]:
    """What stands in `Annotated` anywhere in an annotation, but for the keys of mappings; the innermost first."""
    arguments = get_args(annotation)
    if get_origin(annotation) is dict:
        arguments = arguments[1:]
    if get_origin(annotation) is Annotated:
        yield from _constraints(arguments[0])
        for item in arguments[1:]:
            yield from item.metadata if isinstance(item, FieldInfo) else [item]
        return
    for argument in arguments:
        yield from _constraints(argument)


def _range(constraints: list[object]) -> str:
    """The range of a field; of several types, or of a type that the field narrows, the last one."""
    low = high = alone = ""
    for constraint in constraints:
        if isinstance(constraint, Ge):
            low = _number(constraint.ge)
            alone = f"{low} or more"
        elif isinstance(constraint, Gt):
            low = alone = f"more than {_number(constraint.gt)}"
        elif isinstance(constraint, Le):
            high = _number(constraint.le)
            alone = f"at most {high}"
        elif isinstance(constraint, Lt):
            high = alone = f"less than {_number(constraint.lt)}"
    return f"{low} to {high}" if low and high else alone


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.10g}"
