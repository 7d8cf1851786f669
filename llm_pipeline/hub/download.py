"""Verified downloads: the source's own client brings the files, and none is taken before all of its bytes were hashed.

They are compared with what was pinned: SHA-256 for files in LFS, Git's blob id for small ones of the hub. Each arrives
beside the directory that it is for, in `<directory>.partial`, and is hashed and moved there while others come. Killed
at any moment, the same call goes on with the files that were whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from llm_pipeline.artifacts.pinned import HubFile, PinnedModel
from llm_pipeline.base.digest import blocks_of
from llm_pipeline.base.errors import IntegrityError, Terminal
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.progress import Progress
from llm_pipeline.base.quantities import byte_size
from llm_pipeline.hub.checkpoint import check_checkpoint
from llm_pipeline.hub.git_ids import blob_hasher
from llm_pipeline.hub.source import FileSource

log = get_logger(__name__)

_ATTEMPTS = 2
_FILES_AT_ONCE = 8
_MEGABYTE = 1_000_000


class WrongBytes(IntegrityError):
    """The bytes that came are not the file's."""


class DiskTooSmall(Terminal):
    """The model does not fit on the disk that it should go to."""


def download_model(source: FileSource, model: PinnedModel, destination: Path) -> list[HubFile]:
    """Download a pinned model's files, and nothing else, into a directory, and check that it is sound.

    Args:
        source: Where the files come from, from `open_source`.
        model: The model, resolved by a source of the same name.
        destination: Directory for the files; may hold what an earlier, interrupted call left.

    Returns:
        The files that were not there yet.

    Raises:
        DiskTooSmall: The missing bytes do not fit.
        OSError: The disk filled up meanwhile, or failed.
        IntegrityError: A file's bytes are wrong twice, or the files are no sound model; the message names the file.
        Unsupported: The model asks for code from its repository.
        SourceRefused: The source does not give us a file.
        SourceUnavailable: The source cannot be reached.
    """
    fetched = fetch_files(source, model, model.files, destination)
    check_checkpoint(model, destination)
    return fetched


def fetch_files(source: FileSource, model: PinnedModel, files: Sequence[HubFile], directory: Path) -> list[HubFile]:
    """Have files of a pinned model in a directory; returns those that the source had to be asked for.

    Raises:
        As `download_model`, without what is said of sound models.
    """
    partial = directory.with_name(f"{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    ordered = sorted(files, key=lambda file: file.size, reverse=True)
    with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="download") as pool:
        there = pool.map(lambda file: difference(directory / file.path, file), ordered)
        missing = [file for file, problem in zip(ordered, there, strict=True) if problem]
        require_space(directory, bytes_of(missing))
        with _progress(directory, partial, missing):
            begun = [pool.submit(_fetch, source, model, file, partial, directory) for file in missing]
            try:
                for future in as_completed(begun):
                    future.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
    shutil.rmtree(partial, ignore_errors=True)
    return missing


def _fetch(source: FileSource, model: PinnedModel, file: HubFile, partial: Path, directory: Path) -> None:
    arrived, target = partial / file.path, directory / file.path
    for _ in range(_ATTEMPTS):
        source.fetch(model, file, partial)
        problem = difference(arrived, file)
        if not problem:
            target.parent.mkdir(parents=True, exist_ok=True)
            arrived.replace(target)
            log.info("verified", file=file.path, bytes=file.size)
            return
        log.warning("wrong bytes", file=file.path, problem=problem)
        arrived.unlink(missing_ok=True)
    raise WrongBytes(
        f"the bytes are not those that were pinned, in {_ATTEMPTS} attempts: {problem}",
        where=f"{model.name}: {file.path}",
        hint="a proxy or mirror may change the bytes; if not, the repository is damaged",
    )


def difference(path: Path, file: HubFile) -> str:
    """How a local file differs from what was pinned; empty when it is the same, byte for byte."""
    if path.is_symlink() or not path.is_file():
        return "missing"
    if (size := path.stat().st_size) != file.size:
        return f"{size} bytes instead of {file.size}"
    expected = file.sha256 or file.blob_sha1
    if expected is None:  # an object that only its entity tag names: the source refuses to read another one
        return ""
    hasher = hashlib.sha256() if file.sha256 else blob_hasher(file.size)
    for block in blocks_of(path):
        hasher.update(block)
    actual, name = hasher.hexdigest(), "SHA-256" if file.sha256 else "Git blob"
    return "" if actual == expected else f"{name} {actual} instead of {expected}"


def bytes_of(files: Iterable[HubFile]) -> int:
    """Of all of them."""
    return sum(file.size for file in files)


@contextmanager
def _progress(directory: Path, partial: Path, files: Sequence[HubFile]) -> Iterator[None]:
    """Log how far files are on their way to a directory, whoever writes them, until the block ends."""
    progress, ended = Progress("downloading", bytes_of(files) // _MEGABYTE, "MB"), Event()

    def watch() -> None:
        seen = 0
        while not ended.wait(1.0):
            with contextlib.suppress(OSError):  # a file was moved meanwhile
                arriving = sum(path.stat().st_blocks * 512 for path in partial.rglob("*") if path.is_file())
                verified = bytes_of(file for file in files if (directory / file.path).exists())
                if (there := (arriving + verified) // _MEGABYTE) > seen:
                    progress.advance(there - seen)
                    seen = there

    thread = Thread(target=watch, name="download-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def require_space(directory: Path, needed: int) -> None:
    """Refuse what does not fit into a directory, which need not exist yet.

    Raises:
        DiskTooSmall: With what is needed and what is free.
    """
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise DiskTooSmall(
            f"{byte_size(needed)} are still to be fetched and only {byte_size(free)} are free",
            where=f"work_root ({directory})",
            hint="free some space, or move work_root of the deployment to a larger disk",
        )
