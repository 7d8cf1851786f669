"""From a release's `model.source` to the source that it names."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from pydantic import ValidationError

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.deployment import HubAccess
from llm_pipeline.config.store import StoreConfig
from llm_pipeline.hub.access import connect
from llm_pipeline.hub.cache_source import CacheSource, default_cache
from llm_pipeline.hub.directory_source import DirectorySource
from llm_pipeline.hub.hub_source import HubSource
from llm_pipeline.hub.s3_source import S3Source
from llm_pipeline.hub.source import Source


def open_source(source: str, access: HubAccess, store: StoreConfig) -> Source:
    """The source of that name. Sends nothing yet.

    Args:
        source: `hub`, `cache`, `file:///directory` or `s3://bucket/prefix`.
        access: How this deployment reaches the hub, and where its cache is.
        store: The deployment's store: one in S3 lends its endpoint, profile and role to a source in S3.

    Raises:
        ConfigError: The hub's endpoint, the token, or the S3 prefix cannot be.
    """
    if source == "cache":
        return CacheSource(Path(access.cache) if access.cache else default_cache())
    if source.startswith("file://"):
        return DirectorySource(Path(unquote(source.removeprefix("file://"))))
    if source.startswith("s3://"):
        return S3Source(_s3_access(source, store))
    return HubSource(connect(access.endpoint, access.token_variable))


def _s3_access(source: str, store: StoreConfig) -> StoreConfig:
    lent = store.model_dump(include={"endpoint", "region", "profile", "role"}) if store.uri.startswith("s3://") else {}
    try:
        return StoreConfig.model_validate({**lent, "uri": source})
    except ValidationError as error:
        raise ConfigError(error.errors()[0]["msg"], where="model.source", hint="use s3://bucket/prefix") from error
