"""A verified, resumable download of a pinned model.

A file appears in the destination only when every byte of it was hashed and is what was pinned: SHA-256 for files in
LFS, Git's blob id for small ones of the hub. Killed at any byte, the same call goes on where it stopped.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

from llm_pipeline.artifacts.pinned import HubFile, PinnedModel
from llm_pipeline.base.directory_listing import walk_files
from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.base.file_lock import flocked_within
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.quantities import duration
from llm_pipeline.hub.checkpoint import check_checkpoint
from llm_pipeline.hub.source import Source
from llm_pipeline.hub.transfer import DirectoryNeed, Transfer, TransferStopped, difference, require_space

log = get_logger(__name__)

_MEGABYTE = 1_000_000


@dataclass(frozen=True)
class DownloadReport:
    """Files, bytes and time of one download.

    Attributes:
        files: Files of the model.
        bytes: Bytes of the model.
        fetched_files: Files that were not there yet.
        fetched_bytes: Bytes that came over the network, this time.
        seconds: Wall time, hashing included.
    """

    files: int
    bytes: int
    fetched_files: int
    fetched_bytes: int
    seconds: float

    @property
    def megabytes_per_second(self) -> float:
        """Rate of what was fetched, 10^6 bytes a second."""
        return self.fetched_bytes / _MEGABYTE / self.seconds if self.seconds else 0.0


def download_model(
    source: Source,
    model: PinnedModel,
    destination: Path,
    *,
    connections: int = 8,
    report_every_seconds: float = 10.0,
) -> DownloadReport:
    """Download a pinned model's files, and nothing else, into a directory.

    Partial files live beside the destination, in `<destination>.partial`, and are removed at the end.

    Args:
        source: Where the files come from, from `open_source`.
        model: The model, resolved by a source of the same name.
        destination: Directory for the files; may hold what an earlier, interrupted call left.
        connections: Files fetched side by side.
        report_every_seconds: How often progress is logged.

    Raises:
        DiskTooSmall: The missing bytes do not fit; nothing was fetched.
        IntegrityError: A file's bytes are wrong twice, or the files are no sound model; the message names the file.
        Unsupported: The model asks for code from its repository.
        SourceRefused: The source does not give us a file.
        SourceUnavailable: The source cannot be reached, after several attempts.
        ConfigError: The destination holds files that are not the model's.
        Transient: Another process downloads into this destination.
    """
    started = time.monotonic()
    partial = destination.with_name(f"{destination.name}.partial")
    destination.mkdir(parents=True, exist_ok=True)
    partial.mkdir(parents=True, exist_ok=True)
    busy = Transient("another process downloads into this directory", where=str(partial))
    with flocked_within(partial / "lock", 0.0, busy):
        missing = _missing_files(model, destination)
        transfer = Transfer(source, model, partial)
        needed = sum(file.size for file in missing) - _bytes_in(transfer, missing)
        require_space(DirectoryNeed("work_root", partial, needed))
        with _progress(transfer, missing, destination, report_every_seconds):
            _fetch_all(transfer, missing, destination, connections)
        check_checkpoint(model, destination)
    shutil.rmtree(partial)
    seconds = time.monotonic() - started
    return DownloadReport(len(model.files), model.size, len(missing), max(0, needed), seconds)


def _missing_files(model: PinnedModel, destination: Path) -> list[HubFile]:
    """The files that are not there yet, byte for byte; what is there and wrong is removed."""
    expected = {file.path for file in model.files}
    present = {path.relative_to(destination).as_posix() for path in walk_files(destination)}
    if foreign := sorted(present - expected):
        raise ConfigError(
            f"the destination holds files that are not the model's: {foreign[:4]}",
            where=str(destination),
            hint="choose an empty directory",
        )
    missing = []
    for file in model.files:
        path = destination / file.path
        if path.is_symlink() or not path.exists() or difference(path, file):
            path.unlink(missing_ok=True)
            missing.append(file)
    return missing


def _bytes_in(transfer: Transfer, files: Sequence[HubFile]) -> int:
    """Bytes of the files that are in partial files already."""
    partials = {transfer.partial_file(file) for file in files}
    return sum(path.stat().st_size for path in partials if path.exists())


def _fetch_all(transfer: Transfer, files: Sequence[HubFile], destination: Path, connections: int) -> None:
    """Fetch the files side by side; the first failure stops the others at their next chunk."""
    by_content: dict[Path, list[HubFile]] = {}
    for file in sorted(files, key=lambda file: file.size, reverse=True):
        by_content.setdefault(transfer.partial_file(file), []).append(file)
    with ThreadPoolExecutor(connections, thread_name_prefix="download") as pool:
        try:
            futures = [pool.submit(_fetch_one, transfer, same, destination) for same in by_content.values()]
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            transfer.stop.set()
            pool.shutdown(cancel_futures=True)
    errors = [error for future in futures if not future.cancelled() and (error := future.exception())]
    for error in sorted(errors, key=lambda error: isinstance(error, TransferStopped)):
        raise error


def _fetch_one(transfer: Transfer, same_content: Sequence[HubFile], destination: Path) -> None:
    partial = transfer.fetch(same_content[0])
    for file in same_content:
        target = destination / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        if file is same_content[-1]:
            partial.replace(target)
        else:
            shutil.copyfile(partial, target)
        log.info("verified", file=file.path, bytes=file.size)


def progress_line(done: int, total: int, bytes_per_second: float) -> str:
    """Progress in one line for people: bytes, share, rate and time to go."""
    rate = f"{bytes_per_second / _MEGABYTE:.1f} MB/s"
    to_go = f"{duration((total - done) / bytes_per_second)} to go" if bytes_per_second > 0 else "stalled"
    share = f"{100 * done / total:.0f} %" if total else "100 %"
    return f"downloading: {done / _MEGABYTE:,.0f} of {total / _MEGABYTE:,.0f} MB ({share}), {rate}, {to_go}"


@contextmanager
def _progress(transfer: Transfer, files: Sequence[HubFile], destination: Path, every: float) -> Iterator[None]:
    """Log bytes, rate and time to go, until the block ends."""
    total, ended, started = sum(file.size for file in files), Event(), time.monotonic()

    def done() -> int:
        arrived = sum(file.size for file in files if (destination / file.path).exists())
        return arrived + _bytes_in(transfer, files)

    before = done()

    def report() -> None:
        while not ended.wait(every):
            now = done()
            rate = max(0, now - before) / (time.monotonic() - started)
            log.info(progress_line(now, total, rate))

    thread = Thread(target=report, name="download-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
