"""Settings of adapters: each brings their model, ours as those of other packages do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import (
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, core_schema

from llm_pipeline.base.adapters import Adapter, Group, adapter, our_kinds
from llm_pipeline.base.errors import ConfigError


@dataclass(frozen=True)
class OfKind:
    """Marks the base of a group's settings: its values are of the models that adapters bring.

    A value is read by the model of its kind, and no adapter of another kind is imported for it.

    Attributes:
        group: The adapters' group.
        key: The field that names the kind.
        kind_of: What tells the kind of settings as they are written, where no field names it.
    """

    group: Group
    key: str = "kind"
    kind_of: Callable[[Any], str] | None = None

    def ours(self) -> Any:
        """The union of the models of our kinds."""
        models = tuple(dict.fromkeys(adapter(self.group, kind).config for kind in our_kinds(self.group)))
        return Union[models]  # noqa: UP007 - its members are known at run time only

    def __get_pydantic_core_schema__(self, _base: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """That of our kinds; what else is installed, an editor does not know."""
        if self.kind_of is None:
            told: Any = Annotated[self.ours(), Field(discriminator=self.key)]
        else:
            tagged = tuple(Annotated[adapter(self.group, kind).config, Tag(kind)] for kind in our_kinds(self.group))
            told = Annotated[Union[tagged], Discriminator(self.kind_of)]  # noqa: UP007 - known at run time only
        return handler(TypeAdapter(told).core_schema)

    def _read(self, value: Any, info: ValidationInfo) -> Any:
        if self.kind_of is not None:
            kind: Any = self.kind_of(value)
        elif isinstance(value, Mapping):
            if self.key not in value:
                raise _wrong("missing", value, self.key)
            kind = value[self.key]
        else:
            kind = getattr(value, self.key, None)
            if kind is None:
                raise _wrong("model_type", value)
        if not isinstance(kind, str):
            raise _wrong("string_type", kind, self.key)
        return installed_model(self.group, kind).model_validate(value, context=info.context)


def _wrong(problem: str, value: Any, *key: str) -> ValidationError:
    """One of pydantic's own errors, about a value or one of its keys."""
    context = {"class_name": "settings"} if problem == "model_type" else {}
    details = InitErrorDetails(type=problem, loc=key, input=value, ctx=context)
    return ValidationError.from_exception_data("settings", [details])


def type_of(field: FieldInfo) -> Any:
    """The annotation of a field, with the union of our kinds in place of the base that `OfKind` marks."""
    return with_our_kinds(Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation)


def with_our_kinds(annotation: Any) -> Any:
    """An annotation, with the union of our kinds if it is the base that `OfKind` marks."""
    if get_origin(annotation) is not Annotated:
        return annotation
    marks = [mark for mark in get_args(annotation)[1:] if isinstance(mark, OfKind)]
    return marks[0].ours() if marks else annotation


def installed_model(group: Group, kind: str) -> type[Any]:
    """The model of the settings of a kind, for validators.

    Raises:
        ValueError: No package has it, or it cannot be imported.
    """
    try:
        found: Adapter = adapter(group, kind)
    except ConfigError as error:
        raise ValueError("; ".join(filter(None, [error.message, error.hint]))) from error
    return found.config
