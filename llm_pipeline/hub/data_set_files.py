"""Files of data sets: fetched, every byte verified, and kept, so that each comes once."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_pipeline.artifacts.pinned import HubFile, PinnedDataSet
from llm_pipeline.hub.access import Hub, NotOnTheHub
from llm_pipeline.hub.download import fetch_files
from llm_pipeline.hub.hub_source import HubSource
from llm_pipeline.hub.kept_data_sets import using
from llm_pipeline.hub.source import FileSource
from llm_pipeline.hub.sources import HubDataSets


@dataclass(frozen=True)
class DataSetFiles:
    """Fetches files of data sets.

    Attributes:
        source: Where they come from.
        kept: Directory for the files of all data sets; what is there, and right, is not fetched again.
    """

    source: FileSource
    kept: Path

    def fetch(self, pinned: PinnedDataSet, files: Sequence[HubFile], destination: Path) -> None:
        """Fetch files into a directory, under their paths.

        Raises:
            SourceRefused: The source does not give a file.
            SourceUnavailable: The source cannot be reached, after several attempts.
            IntegrityError: A file's bytes are wrong twice.
            DiskTooSmall: The files do not fit.
        """
        directory = self.kept / pinned.id / pinned.commit
        with using(directory):
            fetch_files(self.source, pinned, files, directory)
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
        kept: As in `DataSetFiles`.

    Returns:
        Where the file is, and what the hub says that it is: its bytes were compared with that.

    Raises:
        HubRefused: No such data set, commit or file, no access, or the client is offline.
        HubUnavailable: The hub cannot be asked now.
        IntegrityError: The bytes are wrong twice, or the hub's answer cannot be used.
        DiskTooSmall: The file does not fit.
    """
    known = HubDataSets(hub).pin(dataset, commit)
    file = next((file for file in known.files if file.path == path), None)
    if file is None:
        raise NotOnTheHub(f"the data set has no file {path}", where=f"{dataset}@{commit[:12]}")
    directory = kept / dataset / commit
    with using(directory):
        fetch_files(HubSource(hub, "dataset"), known, [file], directory)
        return directory / path, file
