"""Files of data sets: fetched, every byte verified, and kept, so that each comes once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from llm_pipeline.artifacts.pinned import HubFile, PinnedDataSet
from llm_pipeline.hub.access import Hub, NotOnTheHub
from llm_pipeline.hub.download import fetch_files
from llm_pipeline.hub.hub_source import HubSource
from llm_pipeline.hub.kept_data_sets import using
from llm_pipeline.hub.source import FileSource


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
