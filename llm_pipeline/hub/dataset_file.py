"""One file of a data set on the hub: pinned, verified, and kept, so that it is fetched once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub.errors import OfflineModeIsEnabled
from pydantic import ValidationError

from llm_pipeline.digest import sha256_bytes
from llm_pipeline.errors import IntegrityError
from llm_pipeline.hub.access import TIMEOUT_SECONDS, Hub, HubRefused, NotOnTheHub, malformed_answer
from llm_pipeline.hub.disk_space import Place, require_space
from llm_pipeline.hub.hub_source import HubSource
from llm_pipeline.hub.pinned import HubFile, PinnedModel
from llm_pipeline.hub.transfer import Transfer
from llm_pipeline.logging import get_logger
from llm_pipeline.store.durable import replace_durably

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
    directory.mkdir(parents=True, exist_ok=True)
    pinned = _pin(hub, dataset, commit, path, directory)
    (file,) = pinned.files
    transfer = Transfer(HubSource(hub, "dataset"), pinned, directory)
    partial = transfer.partial_file(file)
    missing = file.size - (partial.stat().st_size if partial.exists() else 0)
    require_space(Place("work_root", directory, max(0, missing)))
    log.info("data set", dataset=dataset, commit=commit, file=path, bytes=file.size, missing_bytes=missing)
    return transfer.fetch(file), file


def _pin(hub: Hub, dataset: str, commit: str, path: str, directory: Path) -> PinnedModel:
    """What the file is: asked once, as a commit's files never change."""
    where = f"{dataset}@{commit[:12]}"
    record = directory / f"{sha256_bytes(path.encode())[:16]}.{_PIN}"
    if record.exists():
        return PinnedModel.model_validate_json(record.read_text())
    info = _dataset_info(hub, dataset, commit, where)
    if info.sha != commit:
        raise IntegrityError(f"the hub answers with commit {info.sha}, which is not the one asked for", where=where)
    sibling = next((sibling for sibling in info.siblings or [] if sibling.rfilename == path), None)
    if sibling is None:
        raise NotOnTheHub(f"the data set has no file {path}", where=where)
    sha256, size = (sibling.lfs.sha256, sibling.lfs.size) if sibling.lfs else (None, sibling.size)
    try:
        file = HubFile(path=path, size=size, sha256=sha256, blob_sha1=sibling.blob_id)
        pinned = PinnedModel(id=dataset, commit=commit, files=(file,))
    except ValidationError as error:
        raise malformed_answer(where, str(error)) from error
    replace_durably(record, pinned.model_dump_json().encode())
    return pinned


def _dataset_info(hub: Hub, dataset: str, commit: str, where: str) -> Any:
    try:
        with hub.errors_at(where):
            return hub.api.dataset_info(dataset, revision=commit, files_metadata=True, timeout=TIMEOUT_SECONDS)
    except HubRefused as error:
        if isinstance(error.__cause__, OfflineModeIsEnabled):
            hint = "unset HF_HUB_OFFLINE once, or calibrate on a file of your own"
            raise HubRefused(error.message, where=where, hint=hint) from error
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # the client reads what it got without checks
        raise malformed_answer(where, f"{type(error).__name__}: {error}") from error
