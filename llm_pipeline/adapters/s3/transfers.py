"""Files into S3: whole or in parallel parts, each once, and only the bytes that the manifest names."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.base.errors import IntegrityError, PipelineError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.progress import made_progress
from llm_pipeline.store.manifest import MARKERS, Difference, Manifest, ManifestFile
from llm_pipeline.store.s3_answers import back_off
from llm_pipeline.store.s3_bucket import (
    WORKERS,
    Bucket,
    S3Checksum,
    S3Object,
    S3Part,
    S3Upload,
    in_parallel,
    revision_is,
)
from llm_pipeline.store.s3_session import Changed, UploadGone

log = get_logger(__name__)

PART_BYTES = 16 * 1024 * 1024
"""Size of a part. Files of up to half of it are sent whole, in one request each."""

_PARTS_AT_MOST = 10_000
_FILES_AT_ONCE = 2
"""Large files: while S3 joins the parts of one, those of the next are on their way."""

_IN_FLIGHT_BYTES = 2 * PART_BYTES
"""Parts of one file in memory."""

_ATTEMPTS = 5


@dataclass(frozen=True)
class LocalFile:
    """A file to upload.

    Attributes:
        source: Where it is.
        name: The object's name in the store.
        listed: Its size and SHA-256, as the manifest says.
    """

    source: Path
    name: str
    listed: ManifestFile

    @property
    def part_bytes(self) -> int:
        """Size of its parts: doubled until they are few enough for S3."""
        size = PART_BYTES
        while size * _PARTS_AT_MOST < self.listed.size:
            size *= 2
        return size

    def changed(self) -> IntegrityError:
        """The error for bytes that are not those of the manifest."""
        return IntegrityError(
            f"{self.listed.path} changed while it was published",
            where=str(self.source),
            hint="publish it again once nothing writes to it",
        )


def upload(bucket: Bucket, files: Sequence[LocalFile], present: Mapping[str, S3Object]) -> None:
    """Bring files to S3; those of `present` that are right already stay as they are.

    Raises:
        IntegrityError: A file is not, or no longer, what the manifest says.
        Transient: S3 did not take it; the files that it took are not sent again by the next attempt.
    """
    large = [file for file in files if file.listed.size > PART_BYTES // 2]
    small = [file for file in files if file.listed.size <= PART_BYTES // 2]
    with _pool(WORKERS, "s3 part") as requests, _pool(_FILES_AT_ONCE, "s3 file") as readers:
        sender = _PartSender(requests)
        try:
            _wait_for([readers.submit(_place, bucket, file, present, sender.put) for file in large])
            _wait_for([requests.submit(_place, bucket, file, present, _put) for file in small])
        except BaseException as error:
            sender.stopped_by = error
            raise


def _wait_for(futures: Sequence[Future[None]]) -> None:
    """Until all are done, or the first fails: its error is raised."""
    for future in wait(futures, return_when=FIRST_EXCEPTION).done:
        future.result()


@contextmanager
def _pool(threads: int, name: str) -> Iterator[ThreadPoolExecutor]:
    """Threads that end with the block: orderly, or without beginning anything more when it fails."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _place(
    bucket: Bucket,
    file: LocalFile,
    present: Mapping[str, S3Object],
    send: Callable[[Bucket, LocalFile, str | None], str],
) -> None:
    """Upload the file unless its object has these bytes already, also while others write it."""
    there = bucket.head(file.name) if file.name in present else None
    for attempt in range(_ATTEMPTS):
        if there is not None and _holds(there, file):
            return
        try:
            send(bucket, file, there.item.etag if there else None)
        except (Changed, UploadGone):
            back_off(attempt)
            there = bucket.head(file.name)
        else:
            return
    raise Transient("others keep changing an object", where=bucket.address(file.name), hint="run it again")


def _put(bucket: Bucket, file: LocalFile, replaces: str | None) -> str:
    data = file.source.read_bytes()
    if sha256_bytes(data) != file.listed.sha256:
        raise file.changed()
    return bucket.put(file.name, data, revision_is(replaces), claimed=file.listed.sha256)


class _PartSender:
    """Uploads large files in parts, which the threads of a pool send.

    Attributes:
        stopped_by: The error that ended the upload of another file, and with it that of all.
    """

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self.stopped_by: BaseException | None = None

    def put(self, bucket: Bucket, file: LocalFile, replaces: str | None) -> str:
        begun = bucket.begin_upload(file.name, file.listed.sha256)
        try:
            return bucket.complete_upload(begun, self._send(bucket, begun, file), revision_is(replaces))
        except UploadGone:
            raise
        except BaseException:
            _abort(bucket, begun)
            raise

    def _send(self, bucket: Bucket, begun: S3Upload, file: LocalFile) -> list[S3Part]:
        """Read the file once, in order; hash and send its parts in threads, a bounded number of them in memory."""
        sent: list[S3Part] = []
        window: deque[Future[S3Part]] = deque()
        whole = hashlib.sha256()
        try:
            with file.source.open("rb") as stream:
                for number, data in enumerate(_blocks(stream, file.part_bytes), start=1):
                    if self.stopped_by is not None:
                        raise self.stopped_by
                    whole.update(data)
                    made_progress()  # the reader waits until others have arrived
                    window.append(self._pool.submit(bucket.upload_part, begun, number, data))
                    if len(window) * file.part_bytes >= _IN_FLIGHT_BYTES:
                        sent.append(window.popleft().result())
            sent += [future.result() for future in window]
        finally:
            for future in window:
                future.cancel()
            wait(window)  # a part that arrives after the upload was aborted would stay in S3
        if whole.hexdigest() != file.listed.sha256:
            raise file.changed()
        return sent


def _blocks(stream: BinaryIO, size: int) -> Iterator[bytes]:
    while data := stream.read(size):
        yield data


def _holds(there: S3Checksum, file: LocalFile) -> bool:
    """Whether an object is the file: by what its uploader wrote beside it, and S3's own checksum."""
    if there.item.size != file.listed.size or there.claimed != file.listed.sha256:
        return False
    return there.sha256 is not None and (there.parts > 0 or there.sha256 == file.listed.sha256)


def _abort(bucket: Bucket, begun: S3Upload) -> None:
    try:
        bucket.abort_upload(begun)
    except PipelineError as error:  # the error that led here matters more; retention finds what is left
        log.warning("could not abort an upload", object=bucket.address(begun.name), reason=error.message)


_RANGE_BYTES = 16 * 1024 * 1024

Objects = Mapping[str, S3Object]
"""The objects of an artifact by their paths in it, without the store's own."""


def objects_of(bucket: Bucket, directory: str) -> Objects:
    """What lies below an artifact's name."""
    listed = {item.name.removeprefix(f"{directory}/"): item for item in bucket.list(f"{directory}/")}
    return {path: item for path, item in listed.items() if path not in MARKERS}


def listing_differences(manifest: Manifest, objects: Objects) -> list[Difference]:
    """How a listing differs from a manifest: missing, extra, or of another size."""
    wanted = {file.path: file for file in manifest.files}
    found = [Difference(path, "missing") for path in sorted(wanted.keys() - objects.keys())]
    found += [Difference(path, "not in the manifest: an extra file") for path in sorted(objects.keys() - wanted.keys())]
    for path in sorted(wanted.keys() & objects.keys()):
        if wanted[path].size != objects[path].size:
            found.append(Difference(path, f"changed: {objects[path].size} bytes, not {wanted[path].size}"))
    return found


def stored_difference(bucket: Bucket, file: ManifestFile, item: S3Object) -> Difference | None:
    """How an object differs from the manifest as far as S3 itself knows its content.

    S3 stores the SHA-256 of an object that came in one request. Of one that came in parts it stores the SHA-256 of
    the parts' SHA-256, which a manifest cannot be compared with: there the SHA-256 counts that its uploader wrote
    beside it.
    """
    known = bucket.head(item.name)
    if known is None:
        return Difference(file.path, "missing")
    if known.item.size != file.size:
        return Difference(file.path, f"changed: {known.item.size} bytes, not {file.size}")
    sha256 = known.claimed if known.parts else known.sha256 or known.claimed
    if known.claimed is None or sha256 is None:
        return Difference(file.path, "changed: no store wrote it")
    if sha256 != file.sha256:
        return Difference(file.path, f"changed: SHA-256 is {sha256}, not {file.sha256}")
    return None


def streamed_difference(bucket: Bucket, file: ManifestFile, item: S3Object) -> Difference | None:
    """How an object's bytes differ from the manifest; nothing is kept on disk."""
    hasher = hashlib.sha256()
    try:
        for chunk in bucket.stream(item):
            hasher.update(chunk)
    except Changed:
        return Difference(file.path, "changed while it was read")
    if hasher.hexdigest() != file.sha256:
        return Difference(file.path, f"changed: SHA-256 is {hasher.hexdigest()}, not {file.sha256}")
    return None


def download(bucket: Bucket, objects: Objects, files: Sequence[ManifestFile], directory: Path) -> None:
    """Fetch files into a directory; their hashes are for the caller to check.

    Raises:
        Changed: An object was replaced while it was read.
        Transient: S3 gives no answer.
        OSError: The directory cannot be written to.
    """
    for file in files:
        target = directory / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
        os.truncate(target, file.size)

    def fetch_range(wanted: tuple[ManifestFile, int]) -> None:
        file, start = wanted
        _fetch_range(bucket, objects[file.path], directory / file.path, start)

    in_parallel(fetch_range, [(file, start) for file in files for start in range(0, file.size, _RANGE_BYTES)])


def _fetch_range(bucket: Bucket, item: S3Object, target: Path, start: int) -> None:
    with target.open("r+b") as stream:
        stream.seek(start)
        for chunk in bucket.stream(item, start, min(start + _RANGE_BYTES, item.size)):
            stream.write(chunk)
            made_progress()
