"""One file of a data set on the hub: pinned, verified, and kept, so that it is fetched once."""

from __future__ import annotations

from pathlib import Path

from llm_pipeline.artifacts.pinned import HubFile, PinnedDataSet
from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.base.durable import replace_durably
from llm_pipeline.base.logging import get_logger
from llm_pipeline.hub.access import Hub, NotOnTheHub
from llm_pipeline.hub.data_sets import HubDataSets
from llm_pipeline.hub.disk_space import Place, require_space
from llm_pipeline.hub.hub_source import HubSource
from llm_pipeline.hub.kept_data_sets import using
from llm_pipeline.hub.transfer import Transfer

log = get_logger(__name__)

_PIN = "pinned.json"


def fetch_dataset_file(hub: Hub, dataset: str, commit: str, path: str, kept: Path) -> tuple[Path, HubFile]:
    """A file of a data set at a commit.

    Args:
        hub: The hub, from `connect`.
        dataset: `organisation/name`.
        commit: 40 hex digits.
        path: The file's path in the repository.
        kept: Directory for the files of all data sets; what is there, and right, is not fetched again.

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
        pinned = _pin(hub, dataset, commit, path, directory)
        (file,) = pinned.files
        transfer = Transfer(HubSource(hub, "dataset"), pinned, directory)
        partial = transfer.partial_file(file)
        missing = file.size - (partial.stat().st_size if partial.exists() else 0)
        require_space(Place("work_root", directory, max(0, missing)))
        log.info("data set", dataset=dataset, commit=commit, file=path, bytes=file.size, missing_bytes=missing)
        return transfer.fetch(file), file


def _pin(hub: Hub, dataset: str, commit: str, path: str, directory: Path) -> PinnedDataSet:
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
