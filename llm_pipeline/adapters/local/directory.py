"""The settings of a store that is a directory, and what opens it."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import ValidationInfo, field_validator

from llm_pipeline.base.adapters import Adapter, OnCall
from llm_pipeline.base.redaction import without_credentials
from llm_pipeline.config.model import PathsRelativeTo, host_path
from llm_pipeline.config.store import StoreModel

_SCHEME = "file://"
_LOCAL = re.compile(r"file:///.*")


class DirectoryStore(StoreModel):
    """A store on a file system. Written as its path or URI alone, or with these fields.

    Attributes:
        uri: `file:///absolute/path`, in which no character is escaped, or a path, written as any other.
    """

    @field_validator("uri")
    @classmethod
    def _is_a_directory(cls, uri: str, info: ValidationInfo) -> str:
        if isinstance(info.context, PathsRelativeTo) and (_LOCAL.fullmatch(uri) or "://" not in uri):
            return f"{_SCHEME}{host_path(uri.removeprefix(_SCHEME), info)}"
        if not _LOCAL.fullmatch(uri):
            hint = "use file:///absolute/path or s3://bucket/prefix"
            raise ValueError(f"not a store: {without_credentials(uri)!r}; {hint}")
        return uri

    @property
    def directory(self) -> Path:
        """The directory."""
        return Path(self.uri.removeprefix(_SCHEME))


ADAPTER = Adapter(config=DirectoryStore, open=OnCall("llm_pipeline.adapters.local.store:LocalStore"))
