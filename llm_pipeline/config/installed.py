"""Configuration of adapters from other packages: each brings the model of its own settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationInfo, ValidatorFunctionWrapHandler, WrapValidator

from llm_pipeline.base.adapters import Adapter, Group, adapter, is_ours
from llm_pipeline.base.errors import ConfigError


def or_installed(group: Group, key: str = "kind") -> WrapValidator:
    """Let a kind that is not ours be checked by the model of the installed adapter; `key` names the kind."""

    def validate(value: Any, ours: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        kind = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
        if not isinstance(kind, str) or is_ours(group, kind):
            return ours(value)
        return installed_model(group, kind).model_validate(value, context=info.context)

    return WrapValidator(validate)


def installed_model(group: Group, kind: str) -> type[Any]:
    """The model of the settings of a kind that is not ours, for validators.

    Raises:
        ValueError: No package has it, or it cannot be imported.
    """
    try:
        found: Adapter = adapter(group, kind)
    except ConfigError as error:
        raise ValueError("; ".join(filter(None, [error.message, error.hint]))) from error
    return found.config
