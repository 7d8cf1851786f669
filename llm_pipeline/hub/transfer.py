"""One file from the hub to disk: resumed at the byte where it stopped, and accepted only with the right hash.

The hub's client downloads into a temporary file of its own that a killed process leaves useless
(https://github.com/huggingface/huggingface_hub/pull/4228), so the partial file is kept here, under the file's hash,
and the client's session, headers and error types carry the transfer.
"""

from __future__ import annotations

import errno
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, BinaryIO, ClassVar

from huggingface_hub import hf_hub_download, hf_hub_url
from huggingface_hub.constants import MAX_HTTP_DOWNLOAD_SIZE
from huggingface_hub.utils import get_session, hf_raise_for_status

from llm_pipeline.digest import sha256_file
from llm_pipeline.errors import IntegrityError, Terminal
from llm_pipeline.hub.access import TIMEOUT_SECONDS, Hub, HubUnavailable
from llm_pipeline.hub.pinned import HubFile
from llm_pipeline.logging import get_logger

log = get_logger(__name__)

_CHUNK = 256 * 1024
_FAILURES_IN_A_ROW = 5
_LONGEST_WAIT_SECONDS = 120.0
_PARTIAL_CONTENT = 206
_RANGE_NOT_SATISFIABLE = 416


class DiskTooSmall(Terminal):
    """The model does not fit on the disk that it should go to."""


class TransferStopped(Terminal):
    """Another file failed, or the process was asked to stop; the partial file stays for the next attempt."""


@dataclass(frozen=True)
class Transfer:
    """Fetches files of one pinned commit.

    Attributes:
        hub: The hub, from `connect`.
        model_id: `organisation/name`.
        commit: The commit; branches never appear in a transfer.
        partial: Directory of the partial files, on the destination's disk.
        stop: Set to end all running transfers at their next chunk.
    """

    hub: Hub
    model_id: str
    commit: str
    partial: Path
    stop: Event

    _backoff_unit_seconds: ClassVar[float] = 1.0

    def partial_file(self, file: HubFile) -> Path:
        """Where the file's bytes are kept until they are verified."""
        return self.partial / (file.sha256 or file.blob_sha1)

    def fetch(self, file: HubFile) -> Path:
        """The file's verified bytes, in its partial file. Wrong bytes are fetched once more from the start.

        Raises:
            IntegrityError: The bytes are wrong a second time.
            HubRefused: The hub does not give us the file.
            HubUnavailable: Five attempts in a row brought nothing, or the hub asks for a longer wait than two minutes.
            DiskTooSmall: The disk is full.
            TransferStopped: `stop` was set.
        """
        target = self.partial_file(file)
        self._complete(file, target)
        if problem := difference(target, file):
            log.warning("wrong bytes, fetching the file again", file=file.path, problem=problem)
            target.unlink()
            self._complete(file, target)
            if problem := difference(target, file):
                target.unlink()
                raise IntegrityError(
                    f"the hub's bytes are not what its metadata says, twice: {problem}",
                    where=f"{self.model_id}@{self.commit[:12]}: {file.path}",
                    hint="a proxy or mirror may change the bytes; if not, the repository is damaged",
                )
        return target

    def _complete(self, file: HubFile, target: Path) -> None:
        """Bring the partial file to its full size."""
        if file.size > MAX_HTTP_DOWNLOAD_SIZE:
            self._fetch_with_client(file, target)
            return
        target.touch()
        failures = 0
        while (have := target.stat().st_size) != file.size:
            if have > file.size:
                os.truncate(target, 0)
                have = 0
            try:
                self._append(file, target, have)
            except HubUnavailable as error:
                failures = 1 if target.stat().st_size > have else failures + 1
                self._wait(error, failures, file)

    def _wait(self, error: HubUnavailable, failures: int, file: HubFile) -> None:
        backoff = self._backoff_unit_seconds * 2 ** (failures - 1)
        seconds = backoff if error.retry_after_seconds is None else error.retry_after_seconds
        if failures >= _FAILURES_IN_A_ROW or seconds > _LONGEST_WAIT_SECONDS:
            raise error
        log.warning("transfer interrupted, going on", file=file.path, reason=error.message, wait_seconds=seconds)
        if self.stop.wait(seconds):
            raise _stopped(file)

    def _append(self, file: HubFile, target: Path, have: int) -> None:
        """Fetch from byte `have` on, until the end or the first error."""
        url = hf_hub_url(self.model_id, file.path, revision=self.commit, endpoint=self.hub.endpoint)
        headers = self.hub.headers() | {"Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        where = f"{self.model_id}@{self.commit[:12]}: {file.path}"
        with (
            self.hub.errors_at(where),
            get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_SECONDS) as response,
        ):
            if response.status_code == _RANGE_NOT_SATISFIABLE:
                os.truncate(target, 0)
                return
            hf_raise_for_status(response)
            resumed = _resumed_at(response, have)
            try:
                with target.open("r+b", buffering=0) as stream:
                    stream.truncate(have if resumed else 0)
                    stream.seek(0, os.SEEK_END)
                    self._copy(response, stream, file)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise DiskTooSmall("the disk is full", where=str(self.partial), hint="free some space") from error
                raise

    def _copy(self, response: Any, stream: BinaryIO, file: HubFile) -> None:
        for chunk in response.iter_raw(_CHUNK):
            if self.stop.is_set():
                raise _stopped(file)
            view = memoryview(chunk)
            while view:
                view = view[stream.write(view) :]
            if stream.tell() > file.size:
                return  # the size check or the hash will tell

    def _fetch_with_client(self, file: HubFile, target: Path) -> None:
        """Fetch a file too large for the hub's plain HTTP with the client's own Xet transport."""
        if target.exists() and target.stat().st_size == file.size:
            return
        with self.hub.errors_at(f"{self.model_id}@{self.commit[:12]}: {file.path}"):
            fetched = hf_hub_download(
                self.model_id,
                file.path,
                revision=self.commit,
                endpoint=self.hub.endpoint,
                token=self.hub.api.token,
                local_dir=self.partial / "client",
                force_download=True,
            )
        Path(fetched).replace(target)


def _resumed_at(response: Any, have: int) -> bool:
    """Whether the body starts at byte `have`; a server may ignore ranges and send everything."""
    content_range = str(response.headers.get("Content-Range", ""))
    return have > 0 and response.status_code == _PARTIAL_CONTENT and content_range.startswith(f"bytes {have}-")


def _stopped(file: HubFile) -> TransferStopped:
    return TransferStopped("stopped before the file was complete", where=file.path, hint="the same call resumes it")


def difference(path: Path, file: HubFile) -> str | None:
    """How a local file differs from the hub's metadata, or None when it is the same, byte for byte.

    Raises:
        OSError: The file is missing or cannot be read.
    """
    size = path.stat().st_size
    if size != file.size:
        return f"{size} bytes instead of {file.size}"
    if file.sha256 is not None:
        actual = sha256_file(path)
        return None if actual == file.sha256 else f"SHA-256 {actual} instead of {file.sha256}"
    actual = _git_blob_id(path, size)
    return None if actual == file.blob_sha1 else f"Git blob {actual} instead of {file.blob_sha1}"


def _git_blob_id(path: Path, size: int) -> str:
    hasher = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as stream:
        while block := stream.read(_CHUNK):
            hasher.update(block)
    return hasher.hexdigest()
