"""The few requests that a store in S3 is made of: conditional, checked, retried, with errors in our words."""

from __future__ import annotations

import base64
import hashlib
import mimetypes
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from llm_pipeline.base.errors import IntegrityError, Terminal, Transient
from llm_pipeline.base.progress import made_progress
from llm_pipeline.config.s3_place import S3Place
from llm_pipeline.store.s3_session import Absent, Changed, connect, require_boto3, translated

if TYPE_CHECKING:
    from s3transfer.futures import TransferFuture
    from s3transfer.manager import TransferManager

WORKERS = 8
"""Requests in flight at once."""

LONGEST_DOCUMENT_BYTES = 64 * 1024 * 1024
"""Of what is read as a whole: documents, manifests, reports."""

ATTEMPTS = 8
"""Of one request; botocore's own of requests without an answer come below it."""

PART_BYTES = 16 * 1024 * 1024
"""Larger files come and go in parts of that size."""

_BACKOFF_UNIT_SECONDS = 0.1
_CONFLICTS = frozenset({"ConditionalRequestConflict", "OperationAborted"})
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


class LocalFile(NamedTuple):
    """A file to upload, and its SHA-256 in hex, for those who read only its object's head."""

    path: Path
    sha256: str


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


def revision_is(etag: str | None) -> Condition:
    """The condition of a write: the object still has that ETag, or (None) does not exist."""
    return {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}


def back_off(attempt: int) -> None:
    """Wait before the attempt after this one (0 is the first): exponential, with full jitter."""
    time.sleep(random.random() * _BACKOFF_UNIT_SECONDS * 2**attempt)  # noqa: S311 - jitter, not a secret


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
            with closing(answer["Body"]) as body:
                return body.read(LONGEST_DOCUMENT_BYTES + 1), answer["ETag"]

        try:
            data, etag = self._call(get, name)
        except Absent:
            return None
        if len(data) > LONGEST_DOCUMENT_BYTES:
            hint = "no store writes such a document: move it out of the store"
            message = f"it has more than {LONGEST_DOCUMENT_BYTES} bytes"
            raise IntegrityError(message, where=self.address(name), hint=hint)
        return data, etag

    def put(self, name: str, data: bytes, condition: Condition | None = None) -> str:
        """Write an object in one request, its bytes checked by S3; returns its ETag.

        Raises:
            Changed: The condition does not hold, or an earlier attempt whose answer was lost made it so.
        """
        parameters: dict[str, Any] = {
            "Body": data,
            "ChecksumAlgorithm": "SHA256",
            "ChecksumSHA256": base64.b64encode(hashlib.sha256(data).digest()).decode(),
        }
        parameters |= {**self._at(name), **_content_type(name), **(condition or {})}
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
        for page in self._pages("list_objects_v2", below, prefix):
            for item in page.get("Contents", ()):
                name = item["Key"].removeprefix(self._prefix)
                yield S3Object(name, item["Size"], item["ETag"], item["LastModified"])

    def read_range(self, item: S3Object, start: int, stop: int) -> bytes:
        """The bytes of an object from `start` to before `stop`; fewer at its end.

        Raises:
            Changed: The object was replaced or removed meanwhile.
        """
        if start >= min(stop, item.size):
            return b""

        def get() -> bytes:
            wanted = {"IfMatch": item.etag, "Range": f"bytes={start}-{stop - 1}"}
            with closing(self.client.get_object(**self._at(item.name), **wanted)["Body"]) as body:
                data: bytes = body.read()
                return data

        try:
            return self._call(get, item.name)
        except Absent as error:
            raise Changed(error.message, where=error.where) from error

    def upload(self, files: Mapping[str, LocalFile]) -> None:
        """Bring files to objects of these names, whatever is there.

        Raises:
            Transient: S3 did not take it; nothing of an unfinished file is left there.
        """
        with self._transfers() as manager:
            begun = {}
            for name, file in files.items():
                extra = {"ChecksumAlgorithm": "SHA256", "Metadata": {"sha256": file.sha256}, **_content_type(name)}
                place = self._at(name)
                begun[name] = manager.upload(str(file.path), *place.values(), extra, [_Progress()])
            for name, transfer in begun.items():
                self._await(transfer, name)

    def download(self, objects: Mapping[Path, Wanted]) -> None:
        """Bring objects to files.

        Raises:
            Changed: An object is not what is wanted any more.
            Transient: S3 gives no answer.
            OSError: A file cannot be written.
        """
        for path in objects:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._fetch({str(path): wanted for path, wanted in objects.items()}.items())

    def digest(self, wanted: Wanted) -> str:
        """SHA-256 of an object's bytes, in hex; they are kept nowhere.

        Raises:
            Changed, Transient: As `download`.
        """
        hashing = _Hashing()
        self._fetch([(hashing, wanted)])
        return hashing.sha256.hexdigest()

    def _fetch(self, transfers: Iterable[tuple[Any, Wanted]]) -> None:
        with self._transfers() as manager:
            begun = []
            for target, wanted in transfers:
                version = {"VersionId": wanted.version_id} if wanted.version_id else {}
                place = self._at(wanted.name)
                begun.append((manager.download(*place.values(), target, version, [_Progress()]), wanted))
            for transfer, wanted in begun:
                self._await(transfer, wanted.name)
                if transfer.meta.etag not in (None, wanted.etag):  # an empty object's is not told
                    raise Changed("it is not the object that is wanted any more", where=self.address(wanted.name))

    @contextmanager
    def _transfers(self) -> Iterator[TransferManager]:
        """boto3's own transfers, in threads; what has not ended is cancelled when the block fails."""
        from s3transfer.manager import TransferConfig, TransferManager

        options = TransferConfig(
            multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_request_concurrency=WORKERS
        )
        with TransferManager(self.client, options) as manager:
            yield manager

    def _await(self, transfer: TransferFuture, name: str) -> None:
        from s3transfer.exceptions import RetriesExceededError, S3DownloadFailedError

        try:
            transfer.result()
        except S3DownloadFailedError as error:
            raise Changed(str(error), where=self.address(name)) from error
        except RetriesExceededError as error:
            raise translated(error.last_exception, self.address(name)) from error
        except _failed_requests() as error:
            known = translated(error, self.address(name))
            raise (Changed(known.message, where=known.where) if isinstance(known, Absent) else known) from error

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

    def unfinished_uploads(self, prefix: str) -> Iterator[S3Upload]:
        """Multipart uploads below a prefix that were neither completed nor aborted."""
        below = {"Prefix": self._prefix + prefix}
        for page in self._pages("list_multipart_uploads", below, prefix):
            for item in page.get("Uploads", ()):
                yield S3Upload(item["Key"].removeprefix(self._prefix), item["UploadId"], item["Initiated"])

    def abort_upload(self, upload: S3Upload) -> None:
        """Drop an unfinished upload and its parts, if there is one."""
        parameters = {**self._at(upload.name), "UploadId": upload.id}
        try:
            self._call(lambda: self.client.abort_multipart_upload(**parameters), upload.name)
        except Absent:
            return

    def _delete(self, keys: Sequence[dict[str, str]], name: str) -> Sequence[dict[str, str]]:
        """Remove objects in one request; returns those that are still there, and why."""
        listed = {"Objects": keys, "Quiet": True}
        answer = self._call(lambda: self.client.delete_objects(Bucket=self._bucket, Delete=listed), name)
        failed: Sequence[dict[str, str]] = answer.get("Errors", ())
        return failed

    def _at(self, name: str) -> dict[str, Any]:
        return {"Bucket": self._bucket, "Key": self._prefix + name}

    def _pages(self, operation: str, parameters: dict[str, str], name: str) -> Iterator[dict[str, Any]]:
        pages = self.client.get_paginator(operation).paginate(Bucket=self._bucket, **parameters)
        yield from self._call(lambda: list(pages), name)

    def _call(self, request: Callable[[], T], name: str) -> T:
        """Send a request; botocore retries what it knows, this retries broken answers and conflicts (409)."""
        for attempt in range(ATTEMPTS):
            try:
                return request()
            except _failed_requests() as error:
                if attempt == ATTEMPTS - 1 or not _may_pass(error):
                    raise translated(error, self.address(name)) from error
            back_off(attempt)
        raise AssertionError("the last attempt returns or raises")


class _Progress:
    """A subscriber of a transfer."""

    def on_progress(self, **_: object) -> None:
        made_progress()


class _Hashing:
    """Where a download goes that is only hashed; boto3 writes it in order."""

    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        return len(data)


def _content_type(name: str) -> dict[str, str]:
    kind = mimetypes.guess_type(name)[0]
    return {"ContentType": kind} if kind else {}


def _failed_requests() -> tuple[type[Exception], ...]:
    """All that a request, or reading its body, raises.

    botocore reads the body of a refusal (`404` to a GET) outside of its own error handling: a connection that is reset
    there raises urllib3's error, and what arrived of the body fails to parse.
    """
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    return (BotoCoreError, ClientError, ResponseParserError, HTTPError, ConnectionError)


def _may_pass(error: Exception) -> bool:
    from botocore.exceptions import BotoCoreError, ClientError, IncompleteReadError, ResponseStreamingError

    if isinstance(error, ClientError):
        return error.response.get("Error", {}).get("Code") in _CONFLICTS
    return not isinstance(error, BotoCoreError) or isinstance(error, (IncompleteReadError, ResponseStreamingError))
