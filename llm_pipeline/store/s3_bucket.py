"""The few requests that a store in S3 is made of: conditional, checked, retried, with errors in our words."""

from __future__ import annotations

import base64
import hashlib
import mimetypes
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from llm_pipeline.base.errors import IntegrityError, Terminal, Transient
from llm_pipeline.base.progress import made_progress
from llm_pipeline.base.timed_connection import AnswerTooLong, passed_limit
from llm_pipeline.config.s3_place import S3Place
from llm_pipeline.store.s3_answers import (
    ATTEMPTS,
    back_off,
    failed_requests,
    following_page,
    until_whole,
    whole_body,
)
from llm_pipeline.store.s3_session import (
    Absent,
    Changed,
    UploadGone,
    connect,
    require_boto3,
    translated,
)

WORKERS = 8
"""Requests in flight at once."""

LONGEST_DOCUMENT_BYTES = 64 * 1024 * 1024
"""Of what is read as a whole: documents, manifests, reports."""

_CHUNK_BYTES = 256 * 1024
_SMALLEST_CHUNK_BYTES = 4 * 1024
_KEYS_PER_DELETE = 1000
_REMOVED_LATER = frozenset({"InternalError", "ServiceUnavailable", "SlowDown"})

T = TypeVar("T")
S = TypeVar("S")
Condition = dict[str, str]


@dataclass(frozen=True)
class S3Object:
    """An object as a listing shows it; its name is relative to the store."""

    name: str
    size: int
    etag: str
    changed_at: datetime


@dataclass(frozen=True)
class S3Checksum:
    """What S3 knows of an object's content.

    Attributes:
        item: The object.
        sha256: SHA-256 in hex, of the whole object, or of its parts' SHA-256 if there are parts; None if S3 has none.
        parts: How many parts it was uploaded in; 0 for one request.
        claimed: SHA-256 of the whole in hex, as its uploader wrote beside it.
        version_id: In a bucket with versioning.
    """

    item: S3Object
    sha256: str | None
    parts: int
    claimed: str | None
    version_id: str | None = None


class Wanted(NamedTuple):
    """An object as it was seen: another one under its name is another."""

    name: str
    etag: str
    version_id: str | None = None


@dataclass(frozen=True)
class S3Upload:
    """An unfinished multipart upload."""

    name: str
    id: str
    begun_at: datetime | None = None


@dataclass(frozen=True)
class S3Part:
    """A part of a multipart upload that was sent, with its SHA-256 in base64."""

    number: int
    size: int
    etag: str
    sha256: str


def revision_is(etag: str | None) -> Condition:
    """The condition of a write: the object still has that ETag, or (None) does not exist."""
    return {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}


def _base64_sha256(data: bytes) -> str:
    """SHA-256 in base64, as S3 writes it."""
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


def in_parallel(function: Callable[[T], S], items: Iterable[T]) -> list[S]:
    """Apply a function to all items in threads; the first error ends what has not begun and is raised."""
    with ThreadPoolExecutor(WORKERS) as pool:
        futures = [pool.submit(function, item) for item in items]
        try:
            failed = [future for future in wait(futures, return_when=FIRST_EXCEPTION).done if future.exception()]
            return [future.result() for future in failed or futures]
        finally:
            for future in futures:
                future.cancel()


class Bucket:
    """A bucket below a key prefix. Names of objects are relative to that prefix."""

    def __init__(self, config: S3Place) -> None:
        require_boto3(config)
        self._config = config
        self._bucket, prefix = config.bucket_and_prefix
        self._prefix = f"{prefix}/" if prefix else ""
        self._lock = threading.Lock()
        self._connected: tuple[int, Any] | None = None

    @property
    def client(self) -> Any:
        """The client of this process: connections cannot be shared with a parent that forked it."""
        with self._lock:
            if self._connected is None or self._connected[0] != os.getpid():
                self._connected = os.getpid(), connect(self._config)
            return self._connected[1]

    def address(self, name: str) -> str:
        """The object's URI, for messages."""
        return f"s3://{self._bucket}/{self._prefix}{name}"

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Content and ETag of a small object; None if there is none.

        Raises:
            IntegrityError: It is not small.
        """

        def get() -> tuple[bytes, str]:
            answer = self.client.get_object(**self._at(name))
            return whole_body(answer, LONGEST_DOCUMENT_BYTES), answer["ETag"]

        try:
            return self._call(get, name)
        except Absent:
            return None
        except AnswerTooLong as error:
            hint = "no store writes such a document: move it out of the store"
            raise IntegrityError(str(error), where=self.address(name), hint=hint) from error

    def put(self, name: str, data: bytes, condition: Condition | None = None, *, claimed: str | None = None) -> str:
        """Write an object in one request, its bytes checked by S3; returns its ETag.

        Raises:
            Changed: The condition does not hold, or an earlier attempt whose answer was lost made it so.
        """
        parameters: dict[str, Any] = {
            "Body": data,
            "ChecksumAlgorithm": "SHA256",
            "ChecksumSHA256": _base64_sha256(data),
        }
        if kind := mimetypes.guess_type(name)[0]:
            parameters["ContentType"] = kind
        parameters |= {**self._at(name), **self._creation(claimed), **(condition or {})}
        try:
            answer = self._call(lambda: self.client.put_object(**parameters), name)
        except Absent as error:  # an If-Match on an object that was removed
            raise Changed(error.message, where=error.where) from error
        return str(answer["ETag"])

    def head(self, name: str) -> S3Checksum | None:
        """What S3 knows of an object's content; None if there is none."""
        try:
            answer = self._call(lambda: self.client.head_object(**self._at(name), ChecksumMode="ENABLED"), name)
        except Absent:
            return None
        parts = answer["ETag"].strip('"').rpartition("-")[2] if "-" in answer["ETag"] else "0"
        encoded = str(answer.get("ChecksumSHA256", "")).partition("-")[0]
        return S3Checksum(
            item=S3Object(name, answer["ContentLength"], answer["ETag"], answer["LastModified"]),
            sha256=base64.b64decode(encoded).hex() if encoded else None,
            parts=int(parts),
            claimed=answer.get("Metadata", {}).get("sha256"),
            version_id=None if answer.get("VersionId") == "null" else answer.get("VersionId"),
        )

    def list(self, prefix: str) -> Iterator[S3Object]:
        """All objects whose names begin with the prefix, in the order of their names."""
        below = {"Prefix": self._prefix + prefix}
        for page in self._pages("list_objects_v2", below, {"ContinuationToken": "NextContinuationToken"}, prefix):
            for item in page.get("Contents", ()):
                name = item["Key"].removeprefix(self._prefix)
                yield S3Object(name, item["Size"], item["ETag"], item["LastModified"])

    def stream(self, item: S3Object, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes of an object from `start` to `stop`, resumed after the last chunk when a connection broke.

        Raises:
            Changed: The object was replaced or removed meanwhile.
            Transient: Several connections in a row brought next to nothing.
        """
        position, end, failures = start, item.size if stop is None else stop, 0
        resumed_at = position
        while position < end:
            try:
                with closing(self._open_range(item, position, end)) as body:
                    size = max(_SMALLEST_CHUNK_BYTES, _CHUNK_BYTES >> 2 * failures)  # what a break loses again
                    while position < end and (chunk := body.read(min(size, end - position))):
                        position += len(chunk)
                        yield chunk
            except failed_requests() as error:
                enough = position - resumed_at >= _CHUNK_BYTES  # a server that sends byte by byte is not waited for
                if enough and passed_limit(error) is None:
                    failures, resumed_at = 0, position
                failures += 1
                if failures == ATTEMPTS:
                    raise translated(error, self.address(item.name)) from error
                back_off(failures - 1)

    def download(self, objects: Mapping[str, Wanted], directory: Path) -> None:
        """Bring objects to files, by their paths in a directory; boto3's own transfer manager does the work.

        Raises:
            Changed: An object is not what is wanted any more.
            Transient: S3 gives no answer.
            OSError: The directory cannot be written to.
        """
        from s3transfer.exceptions import RetriesExceededError
        from s3transfer.manager import TransferConfig, TransferManager

        with TransferManager(self.client, TransferConfig(max_request_concurrency=WORKERS)) as manager:
            begun = {}
            for path, wanted in objects.items():
                target = directory / path
                target.parent.mkdir(parents=True, exist_ok=True)
                place = self._at(wanted.name)
                version = {"VersionId": wanted.version_id} if wanted.version_id else {}
                begun[path] = manager.download(place["Bucket"], place["Key"], str(target), extra_args=version)
            for path, transfer in begun.items():
                where = self.address(objects[path].name)
                try:
                    transfer.result()
                except RetriesExceededError as error:
                    raise translated(error.last_exception, where) from error
                except failed_requests() as error:
                    raise translated(error, where) from error
                if transfer.meta.etag != objects[path].etag:
                    raise Changed("it is not the object that is wanted any more", where=where)
                made_progress()

    def delete(self, name: str, condition: Condition | None = None) -> None:
        """Remove an object, if there is one.

        Raises:
            Changed: The condition does not hold.
        """
        try:
            self._call(lambda: self.client.delete_object(**self._at(name), **(condition or {})), name)
        except Absent:
            return

    def delete_all(self, names: Sequence[str]) -> None:
        """Remove objects; those that are not there are fine."""
        for first in range(0, len(names), _KEYS_PER_DELETE):
            keys = [{"Key": self._prefix + name} for name in names[first : first + _KEYS_PER_DELETE]]
            for attempt in range(ATTEMPTS):
                failed = self._delete(keys, names[first])
                if not failed:
                    break
                later = all(item.get("Code") in _REMOVED_LATER for item in failed)
                if attempt == ATTEMPTS - 1 or not later:
                    kind, one = Transient if later else Terminal, failed[0]
                    raise kind(f"cannot remove {one.get('Key')}: {one.get('Code')}: {one.get('Message')}")
                back_off(attempt)
                keys = [{"Key": item["Key"]} for item in failed]

    def begin_upload(self, name: str, claimed: str) -> S3Upload:
        """Begin a multipart upload whose parts are checked by their SHA-256."""
        parameters = {**self._at(name), **self._creation(claimed), "ChecksumAlgorithm": "SHA256"}
        answer = self._call(lambda: self.client.create_multipart_upload(**parameters), name)
        return S3Upload(name, answer["UploadId"])

    def unfinished_uploads(self, prefix: str) -> Iterator[S3Upload]:
        """Multipart uploads below a prefix that were neither completed nor aborted."""
        below = {"Prefix": self._prefix + prefix}
        markers = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
        for page in self._pages("list_multipart_uploads", below, markers, prefix):
            for item in page.get("Uploads", ()):
                yield S3Upload(item["Key"].removeprefix(self._prefix), item["UploadId"], item["Initiated"])

    def upload_part(self, upload: S3Upload, number: int, data: bytes) -> S3Part:
        """Send one part, with its SHA-256.

        Raises:
            UploadGone: The upload was completed or aborted by somebody else.
        """
        parameters = {**self._at(upload.name), "UploadId": upload.id, "PartNumber": number, "Body": data}
        sha256 = _base64_sha256(data)
        parameters |= {"ChecksumAlgorithm": "SHA256", "ChecksumSHA256": sha256}
        answer = self._call(lambda: self.client.upload_part(**parameters), upload.name)
        return S3Part(number, len(data), answer["ETag"], sha256)

    def complete_upload(self, upload: S3Upload, parts: Sequence[S3Part], condition: Condition) -> str:
        """Make the parts an object; returns its ETag.

        Raises:
            Changed: The condition does not hold.
            UploadGone: The upload was completed or aborted by somebody else, or by an attempt whose answer was lost.
        """
        listing = [{"PartNumber": part.number, "ETag": part.etag, "ChecksumSHA256": part.sha256} for part in parts]
        parameters = {
            **self._at(upload.name),
            "UploadId": upload.id,
            "MultipartUpload": {"Parts": listing},
            **condition,
        }
        parameters["MpuObjectSize"] = sum(part.size for part in parts)
        return str(self._call(lambda: self.client.complete_multipart_upload(**parameters), upload.name)["ETag"])

    def abort_upload(self, upload: S3Upload) -> None:
        """Drop an unfinished upload and its parts, if there is one."""
        parameters = {**self._at(upload.name), "UploadId": upload.id}
        try:
            self._call(lambda: self.client.abort_multipart_upload(**parameters), upload.name)
        except UploadGone:
            return

    def _delete(self, keys: Sequence[dict[str, str]], name: str) -> Sequence[dict[str, str]]:
        """Remove objects in one request; returns those that are still there, and why."""
        remove = partial(self.client.delete_objects, Bucket=self._bucket, Delete={"Objects": keys, "Quiet": True})
        failed: Sequence[dict[str, str]] = self._call(remove, name).get("Errors", ())
        return failed

    def _at(self, name: str) -> dict[str, Any]:
        return {"Bucket": self._bucket, "Key": self._prefix + name}

    def _creation(self, claimed: str | None) -> dict[str, Any]:
        """What a new object is given: its SHA-256, for those who read only its head."""
        return {"Metadata": {"sha256": claimed}} if claimed else {}

    def _pages(
        self, operation: str, parameters: dict[str, str], names: dict[str, str], name: str
    ) -> Iterator[dict[str, Any]]:
        """The pages of a listing; `names` are those of the parameters that ask for the next one."""
        marker: dict[str, Any] = {}

        def ask() -> tuple[dict[str, Any], dict[str, Any]]:
            page = getattr(self.client, operation)(Bucket=self._bucket, **parameters, **marker)
            return page, following_page(page, names, marker)

        while True:
            page, marker = self._call(ask, name)
            yield page
            if not marker:
                return

    def _open_range(self, item: S3Object, start: int, stop: int) -> Any:
        wanted = f"bytes {start}-{stop - 1}/{item.size}"
        parameters = {**self._at(item.name), "IfMatch": item.etag, "Range": f"bytes={start}-{stop - 1}"}
        try:
            answer = self._call(lambda: self.client.get_object(**parameters), item.name)
        except Absent as error:
            raise Changed(error.message, where=error.where) from error
        if answer.get("ContentRange") != wanted or answer["ETag"] != item.etag:
            answer["Body"].close()
            raise Changed(f"asked for {wanted}, got {answer.get('ContentRange')}", where=self.address(item.name))
        return answer["Body"]

    def _call(self, request: Callable[[], T], name: str) -> T:
        """Send a request until its answer is whole; its error comes in our words."""
        try:
            return until_whole(request)
        except failed_requests() as error:
            raise translated(error, self.address(name)) from error
