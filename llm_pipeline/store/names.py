"""Names of documents and files in a store: relative, plain, and the same on every kind of store."""

from __future__ import annotations

import re

from llm_pipeline.base.errors import ConfigError

_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+@-]*(/[A-Za-z0-9_][A-Za-z0-9_.:+@-]*)*")


def checked_name(name: str) -> str:
    """The name itself, if it cannot leave the store.

    Raises:
        ConfigError: It is absolute, empty, hidden, or has parts or characters that a store does not take.
    """
    if not _SAFE_NAME.fullmatch(name):
        raise ConfigError(f"not a name for the store: {name!r}")
    return name
