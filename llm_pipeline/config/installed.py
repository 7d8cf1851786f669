"""Settings of adapters: each brings their model, ours as those of other packages do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import (
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    Tag,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from llm_pipeline.base.adapters import Adapter, Group, adapter, is_ours, our_kinds
from llm_pipeline.base.errors import ConfigError


@dataclass(frozen=True)
class OfKind:
    """Marks the base of a group's settings: its values are of the models that adapters bring.

    Ours are looked up when the first configuration is read, not when the base is imported, which stands below them.

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

    def __get_pydantic_core_schema__(self, _base: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        told = WrapValidator(self._or_installed)
        if self.kind_of is None:
            return handler.generate_schema(Annotated[self.ours(), Field(discriminator=self.key), told])
        tagged = tuple(Annotated[adapter(self.group, kind).config, Tag(kind)] for kind in our_kinds(self.group))
        ours = Union[tagged]  # type: ignore[valid-type]  # noqa: UP007 - its members are known at run time only
        return handler.generate_schema(Annotated[ours, Discriminator(self.kind_of), told])

    def _or_installed(self, value: Any, ours: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        """Let a kind that is not ours be checked by the model of the installed adapter."""
        kind: Any
        if self.kind_of is not None:
            kind = self.kind_of(value)
        else:
            kind = value.get(self.key) if isinstance(value, Mapping) else getattr(value, self.key, None)
        if not isinstance(kind, str) or is_ours(self.group, kind):
            return ours(value)
        return installed_model(self.group, kind).model_validate(value, context=info.context)


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
