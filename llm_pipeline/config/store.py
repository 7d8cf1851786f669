"""Where artifacts are kept, and whose signature they must bear; prefixes of buckets in S3, and how they are reached."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from llm_pipeline.base.redaction import without_credentials
from llm_pipeline.config.installed import AdapterModel, OfKind, installed_model
from llm_pipeline.config.model import ConfigModel, HostPath, PathText, PlainUrl, VariableName

_S3 = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9][A-Za-z0-9._/-]*)?")


class S3Place(ConfigModel):
    """A prefix of a bucket in S3, or behind another server's S3 API. Credentials, profile and region are AWS's own.

    Attributes:
        uri: `s3://bucket/prefix`.
        endpoint: URL of another S3 API than Amazon's.
    """

    uri: PathText
    endpoint: PlainUrl | None = None

    @field_validator("uri")
    @classmethod
    def _is_in_s3(cls, uri: str) -> str:
        if not _S3.fullmatch(uri):
            raise ValueError(f"not a place in S3: {without_credentials(uri)!r}; use s3://bucket/prefix")
        return uri.rstrip("/")

    @property
    def bucket_and_prefix(self) -> tuple[str, str]:
        """Bucket and key prefix, which has no slash at its end and may be empty."""
        bucket, _, prefix = self.uri.removeprefix("s3://").partition("/")
        return bucket, prefix


_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://")
_DIRECTORY = "file"


class Signing(ConfigModel):
    """Signatures of artifacts and results, made and checked with sigstore's model-signing.

    A stage signs what it publishes and its result. An input without a valid signature is refused, and a stored result
    without one is computed again.

    Attributes:
        private_key: PEM file of the elliptic-curve key that signs; None where nothing is published.
        password_variable: Environment variable with the private key's password; None when it has none.
        public_keys: PEM files of the keys that are trusted; any of them may have signed.
    """

    private_key: HostPath | None = None
    password_variable: VariableName | None = None
    public_keys: Annotated[tuple[HostPath, ...], Field(min_length=1, max_length=64)]


class StoreModel(AdapterModel):
    """What every kind of artifact store is; each has a scheme of its own. Written as its URI alone, or with fields.

    Attributes:
        uri: Where it is.
        cache: Directory for copies of artifacts from elsewhere; `<work_root>/cache` when a deployment leaves it out.
        signing: Signatures of artifacts; None for no signatures.
    """

    uri: PathText
    cache: HostPath | None = None
    signing: Signing | None = None

    @model_validator(mode="before")
    @classmethod
    def _as_written(cls, value: Any) -> Any:
        """A URI alone is enough."""
        return {"uri": value} if isinstance(value, str) else value

    @property
    def kind(self) -> str:
        """The scheme of its URI; the entry points `llm_pipeline.stores` are named by it."""
        return _kind_of(self)

    @property
    def directory(self) -> Path | None:
        """The directory of a store on a file system; None for any other."""
        return None


def _kind_of(value: Any) -> str:
    """The kind of settings as they are written, or of those that are read; a path alone is a directory."""
    uri = value.get("uri") if isinstance(value, Mapping) else getattr(value, "uri", value)
    found = _SCHEME.match(uri) if isinstance(uri, str) else None
    return found[1] if found else _DIRECTORY


Store = Annotated[StoreModel, OfKind("stores", kind_of=_kind_of), SerializeAsAny()]
"""Settings of an adapter: one of ours, or one that an installed package brings."""


def store_settings(uri: str, **settings: Any) -> StoreModel:
    """The settings of the store at a URI.

    Raises:
        ValueError: They are wrong, or no package brings such a store.
    """
    found: StoreModel = installed_model("stores", _kind_of(uri)).model_validate({"uri": uri, **settings})
    return found
