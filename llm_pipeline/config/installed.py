"""Settings of adapters: each brings their model, ours as those of other packages do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Union

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from llm_pipeline.base.adapters import Adapter, Group, adapter, kinds, our_kinds
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.model import ConfigModel


class AdapterModel(ConfigModel):
    """Settings of an adapter, and what `plan` says of them; each group says what it is asked with."""

    def problems(self, *_: Any, **__: Any) -> Iterator[str]:
        """Why it cannot do what it is there for, as far as its settings tell; `plan` refuses it."""
        yield from ()

    def warnings(self, *_: Any, **__: Any) -> Iterator[str]:
        """What `plan` says of it besides."""
        yield from ()


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

    def __get_pydantic_core_schema__(self, _base: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """That of our kinds; what else is installed, an editor does not know."""
        models = dict.fromkeys(adapter(self.group, kind).config for kind in our_kinds(self.group))
        ours: Any = Union[tuple(models)]  # noqa: UP007 - its members are known at run time only
        return handler(TypeAdapter(ours).core_schema)

    def _read(self, value: Any, info: ValidationInfo) -> Any:
        if self.kind_of is not None:
            kind: Any = self.kind_of(value)
        else:
            kind = value.get(self.key) if isinstance(value, Mapping) else getattr(value, self.key, None)
        if not isinstance(kind, str):
            raise ValueError(  # noqa: TRY004 - pydantic makes a mistake of it
                f"{self.key} must say which of them it is: {', '.join(kinds(self.group))}"
            )
        return installed_model(self.group, kind).model_validate(value, context=info.context)


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
