"""Files of data sets: fetched one after the other, every byte verified, and kept, so that each comes once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_pipeline.artifacts.pinned import HubFile, PinnedDataSet
from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.base.durable import replace_durably
from llm_pipeline.base.logging import get_logger
from llm_pipeline.hub.access import Hub, NotOnTheHub
from llm_pipeline.hub.hub_source import HubSource
from llm_pipeline.hub.kept_data_sets import using
from llm_pipeline.hub.source import FileBytes
from llm_pipeline.hub.sources import HubDataSets
from llm_pipeline.hub.transfer import DirectoryNeed, Transfer, require_space

log = get_logger(__name__)

_PIN = "pinned.json"


@dataclass(frozen=True)
class DataSetFiles:
    """Fetches files of data sets.

    Attributes:
        source: Where they come from.
        kept: Directory for the files of all data sets; what is there, and right, is not fetched again.
    """

    source: FileBytes
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
        transfer = Transfer(self.source, pinned, directory)
        with using(directory):
            for file, verified in zip(files, _fetched(transfer, files), strict=True):
                target = destination / file.path
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(verified, target)


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
    directory = kept / dataset / commit
    with using(directory):
        pinned = _pinned(hub, dataset, commit, path, directory)
        (verified,) = _fetched(Transfer(HubSource(hub, "dataset"), pinned, directory), pinned.files)
        return verified, pinned.files[0]


def _fetched(transfer: Transfer, files: Sequence[HubFile]) -> Iterator[Path]:
    """The verified files in the transfer's directory, once there is room for all of them."""
    partial = {file: transfer.partial_file(file) for file in files}
    missing = sum(file.size - (path.stat().st_size if path.exists() else 0) for file, path in partial.items())
    require_space(DirectoryNeed("work_root", transfer.partial, max(0, missing)))
    for file in files:
        verified = transfer.fetch(file)
        log.info("verified", data_set=transfer.model.name, file=file.path, bytes=file.size)
        yield verified


def _pinned(hub: Hub, dataset: str, commit: str, path: str, directory: Path) -> PinnedDataSet:
    """Pin the file; requested once, because a commit's files never change."""
    record = directory / f"{sha256_bytes(path.encode())[:16]}.{_PIN}"
    if record.exists():
        return PinnedDataSet.model_validate_json(record.read_text())
    known = HubDataSets(hub, "unset HF_HUB_OFFLINE once, or calibrate on a file of your own").pin(dataset, commit)
    file = next((file for file in known.files if file.path == path), None)
    if file is None:
        raise NotOnTheHub(f"the data set has no file {path}", where=f"{dataset}@{commit[:12]}")
    pinned = PinnedDataSet(id=known.id, commit=commit, files=(file,))
    replace_durably(record, pinned.model_dump_json().encode())
    return pinned
