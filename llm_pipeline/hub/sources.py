"""The sources that `model.source` and `evaluation.data_source` name: the hub, a directory, an S3 prefix.

    source = open_source("hub", deployment.hub, deployment.store)
    data_sets = open_data_sets("hub", deployment.hub)
    pinned = data_sets.pin("openai/gsm8k", "main")

No file of a data set is run, and none is chosen here: pinned, it lists every file of its repository with its hashes.
Its files are fetched, every byte is verified, and they are kept, so that each comes once.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from pydantic import ValidationError

from llm_pipeline.artifacts.pinned import HubFile, PinnedDataSet, PinnedModel
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.deployment import HubAccess
from llm_pipeline.config.store import S3Place, StoreModel
from llm_pipeline.hub.access import Hub, NotOnTheHub, connect
from llm_pipeline.hub.directory_source import DirectorySource
from llm_pipeline.hub.download import fetch_files
from llm_pipeline.hub.hub_source import HubSource
from llm_pipeline.hub.kept_data_sets import using
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


def copy_files(
    source: FileSource, kept: Path, pinned: PinnedDataSet, files: Sequence[HubFile], destination: Path
) -> None:
    """Fetch files of a data set into a directory, under their paths.

    Args:
        source: Where they come from.
        kept: Directory for the files of all data sets; what is there, and right, is not fetched again.
        pinned: The data set.
        files: Those that are wanted.
        destination: The directory.

    Raises:
        SourceRefused: The source does not give a file.
        SourceUnavailable: The source cannot be reached, after several attempts.
        IntegrityError: A file's bytes are wrong twice.
        DiskTooSmall: The files do not fit.
    """
    with _kept(source, kept, pinned, files) as directory:
        for file in files:
            target = destination / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(directory / file.path, target)


def fetch_dataset_file(hub: Hub, dataset: str, commit: str, path: str, kept: Path) -> tuple[Path, HubFile]:
    """A file of a data set at a commit of the hub.

    Args:
        hub: The hub, from `connect`.
        dataset: `organisation/name`.
        commit: 40 hex digits.
        path: The file's path in the repository.
        kept: As in `copy_files`.

    Returns:
        Where the file is, and what the hub says that it is: its bytes were compared with that.

    Raises:
        HubRefused: No such data set, commit or file, no access, or the client is offline.
        HubUnavailable: The hub cannot be asked now.
        IntegrityError: The bytes are wrong twice, or the hub's answer cannot be used.
        DiskTooSmall: The file does not fit.
    """
    source = HubSource(hub, "dataset")
    pinned = source.pin(dataset, commit)
    file = next((file for file in pinned.files if file.path == path), None)
    if file is None:
        raise NotOnTheHub(f"the data set has no file {path}", where=f"{dataset}@{commit[:12]}")
    with _kept(source, kept, pinned, [file]) as directory:
        return directory / path, file


@contextmanager
def _kept(source: FileSource, kept: Path, pinned: PinnedDataSet, files: Sequence[HubFile]) -> Iterator[Path]:
    directory = kept / pinned.id / pinned.commit
    with using(directory):
        fetch_files(source, pinned, files, directory)
        yield directory
