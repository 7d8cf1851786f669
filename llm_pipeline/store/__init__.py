"""Immutable artifacts named by their content, and the small documents that point at them."""

from pydantic import ValidationError

from llm_pipeline.base.adapters import adapter
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.store import StoreModel, store_settings
from llm_pipeline.store.artifact_store import ArtifactStore

__all__ = ["ArtifactStore", "open_store"]


def open_store(config: StoreModel | str) -> ArtifactStore:
    """The store of a configuration, or of a URI alone. Sends nothing yet.

    Raises:
        ConfigError: It is not the address of a store, or something about it cannot be.
        Unsupported: It is in S3, and boto3 is not installed in this interpreter.
    """
    if isinstance(config, str):
        uri = config
        try:
            config = store_settings(uri)
        except ValueError as error:
            told = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise ConfigError(told.removeprefix("Value error, "), where=uri) from error
    store: ArtifactStore = adapter("stores", config.kind).open(config)
    return store
