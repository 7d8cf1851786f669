"""A prefix of a bucket in S3, and how it is reached: of a store, of a model's source, of a repository of models."""

from __future__ import annotations

import re

from pydantic import field_validator

from llm_pipeline.base.redaction import without_credentials
from llm_pipeline.config.model import ConfigModel, PathText, PlainUrl

_S3 = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>[A-Za-z0-9][A-Za-z0-9._/-]*))?")


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
