"""Configuration of adapters from other packages: each brings the model of its own settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationInfo, ValidatorFunctionWrapHandler, WrapValidator

from llm_pipeline.base.adapters import Group, adapter, is_ours
from llm_pipeline.base.errors import ConfigError


def or_installed(group: Group) -> WrapValidator:
    """Let a kind that is not ours be checked by the model of the installed adapter (its attribute `config`)."""

    def validate(value: Any, ours: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
        if not isinstance(kind, str) or is_ours(group, kind):
            return ours(value)
        try:
            model = adapter(group, kind).config
        except ConfigError as error:
            raise ValueError(f"{error.message}; {error.hint}") from error
        return model.model_validate(value, context=info.context)

    return WrapValidator(validate)
