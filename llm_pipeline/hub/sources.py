"""The sources that `model.source` and `evaluation.data_source` name: the hub, a directory, an S3 prefix.

    source = open_source("hub", deployment.hub, deployment.store)
    data_sets = open_data_sets("hub", deployment.hub)
    pinned = data_sets.pin("openai/gsm8k", "main")

No file of a data set is run, and none is chosen here: pinned, it lists every file of its repository with its hashes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from pydantic import ValidationError

from llm_pipeline.artifacts.pinned import HubFile, PinnedDataSet, PinnedModel
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.deployment import HubAccess
from llm_pipeline.config.store import S3Place, StoreModel
from llm_pipeline.hub.access import connect
from llm_pipeline.hub.directory_source import DirectorySource
from llm_pipeline.hub.hub_source import HubSource
from llm_pipeline.hub.s3_source import S3Source
from llm_pipeline.hub.source import FileSource, Source, SourceRefused


def open_source(source: str, access: HubAccess, store: StoreModel) -> Source:
    """The source of that name. Sends nothing yet.

    Args:
        source: `hub`, `file:///directory` or `s3://bucket/prefix`.
        access: How this deployment reaches the hub.
        store: The deployment's store: one in S3 lends its endpoint to a source in S3.

    Raises:
        ConfigError: The hub's endpoint, the token, or the S3 prefix cannot be.
    """
    if source.startswith("file://"):
        return DirectorySource(Path(unquote(source.removeprefix("file://"))))
    if source.startswith("s3://"):
        return S3Source(_s3_access(source, store))
    return HubSource(connect(access.endpoint, access.token_variable))


def _s3_access(source: str, store: StoreModel) -> S3Place:
    try:
        return S3Place(uri=source, endpoint=store.endpoint if isinstance(store, S3Place) else None)
    except ValidationError as error:
        raise ConfigError(error.errors()[0]["msg"].removeprefix("Value error, "), where="model.source") from error


class DataSets(FileSource, Protocol):
    """A place that data sets are read from."""

    def pin(self, name: str, revision: str) -> PinnedDataSet:
        """A data set's commit, and all of its files.

        Args:
            name: `organisation/name`, or a name alone for some of the oldest.
            revision: Branch, tag or commit.

        Raises:
            SourceRefused: No such data set or revision, or no access to it.
            SourceUnavailable: The source cannot be asked now.
            IntegrityError: What the source says of it cannot be used.
        """


def open_data_sets(source: str, access: HubAccess) -> DataSets:
    """The source of that name. Sends nothing yet.

    Args:
        source: `hub` or `file:///directory`.
        access: How this deployment reaches the hub.

    Raises:
        ConfigError: The hub's endpoint or the token cannot be.
    """
    if source.startswith("file://"):
        return DirectoryOfDataSets(Path(unquote(source.removeprefix("file://"))))
    return HubSource(connect(access.endpoint, access.token_variable), "dataset")


@dataclass(frozen=True)
class DirectoryOfDataSets:
    """Data sets in a directory, each in `organisation/name/`. It has no commits: an id over its files is its commit."""

    root: Path

    def pin(self, name: str, revision: str) -> PinnedDataSet:
        """Pins the files by their hashes, which reads every byte of the data set."""
        directory = self.root / name
        if not directory.is_dir():
            raise SourceRefused(
                f"there is no data set {name}",
                where=str(directory),
                hint=f"put its files there (`hf download {name} --repo-type dataset --local-dir ..`), "
                "or correct evaluation.data_source",
            )
        return DirectorySource(directory).pin(name, revision)

    def fetch(self, model: PinnedModel, file: HubFile, directory: Path) -> None:
        DirectorySource(self.root / model.id).fetch(model, file, directory)
