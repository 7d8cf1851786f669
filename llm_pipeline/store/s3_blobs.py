"""Blobs as objects below a prefix of a bucket: requests are conditional, checked, retried, with errors in our words.

`connect` makes the client, with credentials, endpoint and retries.

It needs a server with conditional writes (`If-None-Match`, `If-Match`): Amazon's since 2024, MinIO, Ceph.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import mimetypes
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from llm_pipeline.base.errors import ConfigError, IntegrityError, PipelineError, Terminal, Transient, Unsupported
from llm_pipeline.base.progress import made_progress
from llm_pipeline.config.store import S3Place
from llm_pipeline.store.blobs import ANY, WORKERS, Blob, Changed, Leftover, Listed, LocalFile, back_off

if TYPE_CHECKING:
    from s3transfer.futures import TransferFuture
    from s3transfer.manager import TransferManager

LONGEST_BLOB_BYTES = 64 * 1024 * 1024
"""Of what is read as a whole: documents, manifests, reports."""

ATTEMPTS = 8
"""Of one request; botocore's own of requests without an answer come below it."""

PART_BYTES = 16 * 1024 * 1024
"""Larger files come and go in parts of that size."""

_UPLOADS = 3
_CONFLICTS = frozenset({"ConditionalRequestConflict", "OperationAborted"})
_KEYS_PER_DELETE = 1000
_UPLOAD_MARK = "?upload="

T = TypeVar("T")


@dataclass(frozen=True)
class S3Head:
    """What S3 knows of an object without its content.

    Attributes:
        item: The object; its revision is its ETag.
        sha256: SHA-256 of the whole in hex; None if S3 has none, as of an object that was uploaded in parts.
        claimed: SHA-256 of the whole in hex, as its uploader wrote beside it.
    """

    item: Listed
    sha256: str | None
    claimed: str | None


class Wanted(NamedTuple):
    """An object as it was seen: another one under its name is another, unless whoever wants it compares its bytes."""

    name: str
    etag: str | None


class S3Blobs:
    """Blobs in a bucket below a key prefix. Names are relative to that prefix; a revision is an ETag."""

    root: Path | None = None

    def __init__(self, config: S3Place) -> None:
        if importlib.util.find_spec("boto3") is None:  # it takes long to import
            hint = "pip install 'llm-pipeline[store-s3]'"
            raise Unsupported("a store in S3 needs boto3", where=config.uri, hint=hint)
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
        """The object's URI."""
        return f"s3://{self._bucket}/{self._prefix}{name}"

    def get(self, name: str) -> Blob | None:
        def read() -> Blob:
            answer = self.client.get_object(**self._at(name))
            with closing(answer["Body"]) as body:
                if answer["ContentLength"] > LONGEST_BLOB_BYTES:
                    problem, hint = f"it has more than {LONGEST_BLOB_BYTES} bytes", "no store writes it: move it out"
                    raise IntegrityError(problem, where=self.address(name), hint=hint)
                return Blob(body.read(), answer["ETag"], answer["LastModified"])  # read whole, its length is checked

        try:
            return self._call(read, name)
        except Absent:
            return None

    def put(self, name: str, data: bytes, expect: str | None = ANY) -> str:
        """Writes it in one request, its bytes checked by S3."""
        parameters: dict[str, Any] = {
            "Body": data,
            "ChecksumAlgorithm": "SHA256",
            "ChecksumSHA256": base64.b64encode(hashlib.sha256(data).digest()).decode(),
        }
        parameters |= {**self._at(name), **_content_type(name), **_condition(expect)}
        try:
            answer = self._call(lambda: self.client.put_object(**parameters), name)
        except Absent as error:  # an If-Match on an object that was removed
            raise Changed(error.message, where=error.where) from error
        return str(answer["ETag"])

    def list(self, below: str) -> Iterator[Listed]:
        prefix = f"{below}/" if below else ""
        for page in self._pages("list_objects_v2", prefix):
            for item in page.get("Contents", ()):
                name = item["Key"].removeprefix(self._prefix)
                yield Listed(name, item["Size"], item["ETag"], item["LastModified"])

    def delete(self, name: str, expect: str = ANY) -> None:
        with suppress(Absent):
            self._call(lambda: self.client.delete_object(**self._at(name), **_condition(expect)), name)

    def delete_all(self, names: Sequence[str]) -> None:
        for first in range(0, len(names), _KEYS_PER_DELETE):
            keys = [{"Key": self._prefix + name} for name in names[first : first + _KEYS_PER_DELETE]]
            parameters = {"Bucket": self._bucket, "Delete": {"Objects": keys, "Quiet": True}}
            answer = self._call(partial(self.client.delete_objects, **parameters), names[first])
            for failed in answer.get("Errors", ()):
                kind = Terminal if failed.get("Code") == "AccessDenied" else Transient
                raise kind(f"cannot remove {failed.get('Key')}: {failed.get('Code')}: {failed.get('Message')}")

    def upload(self, files: Mapping[str, LocalFile], *, link: bool) -> None:
        """Uploads files, large ones in parts; nothing of an unfinished one is left there."""
        del link
        for attempt in range(_UPLOADS):
            try:
                self._upload(files)
                break
            except Transient:  # a broken answer, or one that was lost
                if attempt == _UPLOADS - 1:
                    raise
                back_off(attempt)
            files = {name: file for name, file in files.items() if self._claimed(name) != file.sha256}

    def sha256(self, item: Listed) -> str:
        hashing = _Hashing()
        self._fetch([(hashing, Wanted(item.name, item.revision))])
        return hashing.sha256.hexdigest()

    def stated_sha256(self, item: Listed) -> str | None:
        """What its uploader wrote beside it, which an object that others put in its place does not have."""
        return self._claimed(item.name)

    def unfinished(self) -> Iterator[Leftover]:
        """Multipart uploads that were neither completed nor aborted."""
        for page in self._pages("list_multipart_uploads", ""):
            for item in page.get("Uploads", ()):
                name = f"{item['Key'].removeprefix(self._prefix)}{_UPLOAD_MARK}{item['UploadId']}"
                yield Leftover(name=name, bytes=0, changed_at=item["Initiated"], transfer=True)

    def drop(self, leftover: Leftover) -> None:
        name, _, upload_id = leftover.name.partition(_UPLOAD_MARK)
        parameters = {**self._at(name), "UploadId": upload_id}
        with suppress(Absent):
            self._call(lambda: self.client.abort_multipart_upload(**parameters), name)

    def head(self, name: str) -> S3Head | None:
        """What S3 knows of an object; None if there is none."""
        try:
            answer = self._call(lambda: self.client.head_object(**self._at(name), ChecksumMode="ENABLED"), name)
        except Absent:
            return None
        encoded = "" if "-" in answer["ETag"] else answer.get("ChecksumSHA256", "")  # of parts it is a hash of hashes
        return S3Head(
            item=Listed(name, answer["ContentLength"], answer["ETag"], answer["LastModified"]),
            sha256=base64.b64decode(encoded).hex() if encoded else None,
            claimed=answer.get("Metadata", {}).get("sha256"),
        )

    def read_range(self, item: Listed, start: int, stop: int) -> bytes:
        """The bytes of an object from `start` to before `stop`; fewer at its end.

        Raises:
            Changed: The object was replaced or removed meanwhile.
        """
        if start >= min(stop, item.size):
            return b""

        def get() -> bytes:
            wanted = {"IfMatch": item.revision, "Range": f"bytes={start}-{stop - 1}"}
            with closing(self.client.get_object(**self._at(item.name), **wanted)["Body"]) as body:
                data: bytes = body.read()
                return data

        try:
            return self._call(get, item.name)
        except Absent as error:
            raise Changed(error.message, where=error.where) from error

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

    def _upload(self, files: Mapping[str, LocalFile]) -> None:
        with self._transfers() as manager:
            begun = {}
            for name, file in files.items():
                extra = {"ChecksumAlgorithm": "SHA256", "Metadata": {"sha256": file.sha256}, **_content_type(name)}
                place = self._at(name)
                begun[name] = manager.upload(str(file.path), *place.values(), extra, [_Progress()])
            for name, transfer in begun.items():
                self._await(transfer, name)

    def _claimed(self, name: str) -> str | None:
        head = self.head(name)
        return head.claimed if head else None

    def _fetch(self, transfers: Iterable[tuple[Any, Wanted]]) -> None:
        with self._transfers() as manager:
            begun = []
            for target, wanted in transfers:
                place = self._at(wanted.name)
                begun.append((manager.download(*place.values(), target, None, [_Progress()]), wanted))
            for transfer, wanted in begun:
                self._await(transfer, wanted.name)
                if wanted.etag and transfer.meta.etag not in (None, wanted.etag):  # an empty object's is not told
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

    def _at(self, name: str) -> dict[str, Any]:
        return {"Bucket": self._bucket, "Key": self._prefix + name}

    def _pages(self, operation: str, prefix: str) -> Iterable[dict[str, Any]]:
        below = {"Bucket": self._bucket, "Prefix": self._prefix + prefix}
        return self._call(lambda: [*self.client.get_paginator(operation).paginate(**below)], prefix)

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


def _condition(expect: str | None) -> dict[str, str]:
    if expect == ANY:
        return {}
    return {"IfNoneMatch": "*"} if expect is None else {"IfMatch": expect}


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


CONNECTIONS = 16
"""Connections that one client keeps open; at least as many as there are threads that use it."""

_CONNECT_SECONDS = 10

_REFUSALS = (401, 403)
_REFUSED = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidToken", "TokenRefreshRequired"}
)  # of status 400
_TOO_MANY, _SERVER_ERROR = 429, 500
_NEEDED = "s3:GetObject, PutObject, DeleteObject, ListBucket, ListBucketMultipartUploads, AbortMultipartUpload"
_CREDENTIALS_HINT = (
    "check AWS_PROFILE, or AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN; they need "
    f"{_NEEDED}, with aws:kms also kms:GenerateDataKey and kms:Decrypt"
)
_AGAIN = "run it again; it continues where it stopped"
_GONE = "it was listed a moment ago: run it again"
_REGION = "set AWS_DEFAULT_REGION to the bucket's region"


class Absent(Transient):
    """There is no such object."""


_KINDS: dict[str, tuple[type[PipelineError], str]] = {
    "404": (Absent, _GONE),
    "NoSuchKey": (Absent, _GONE),
    "412": (Changed, ""),
    "PreconditionFailed": (Changed, ""),
    "ConditionalRequestConflict": (Changed, ""),
    "OperationAborted": (Changed, ""),
    "NoSuchUpload": (Absent, ""),
    "NoSuchBucket": (ConfigError, "create the bucket, or correct store.uri and store.endpoint"),
    "301": (ConfigError, _REGION),
    "AuthorizationHeaderMalformed": (ConfigError, _REGION),
    "IllegalLocationConstraintException": (ConfigError, _REGION),
    "PermanentRedirect": (ConfigError, _REGION),
    "RequestTimeTooSkewed": (Terminal, "set this machine's clock: it is more than 15 minutes off S3's"),
    "BadDigest": (Transient, "the bytes were damaged in transit; run it again"),
    "InvalidPart": (Transient, _AGAIN),
    "RequestTimeout": (Transient, _AGAIN),
}


def connect(config: S3Place) -> Any:
    """A boto3 client of the store's bucket. It sends nothing yet.

    Raises:
        ConfigError: The profile does not exist, or the endpoint cannot be.
    """
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    s3: dict[str, Any] = {}
    if config.endpoint:
        s3["addressing_style"] = "path"  # its buckets may have no names of hosts
    if not (config.endpoint or "").startswith("http://"):
        # botocore's own rule for TLS with a checksum; it does not see a checksum that it did not compute, and would
        # hash every body once more. The signature covers the checksum.
        s3["payload_signing_enabled"] = False
    options = Config(
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        connect_timeout=_CONNECT_SECONDS,
        max_pool_connections=CONNECTIONS,
        tcp_keepalive=True,
        # The store sends SHA-256 itself where bytes count, and verifies what it reads against the manifest; botocore's
        # default would add a CRC32 to both, in trailers that other S3 servers than Amazon's may not know.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3=s3,
    )
    try:
        # boto3's own session adds managed transfers, and is slow to import
        return Session().create_client("s3", endpoint_url=config.endpoint, config=options)
    except (BotoCoreError, ValueError) as error:
        raise translated(error, config.uri) from error


def translated(error: Exception, where: str) -> PipelineError:
    """The error of a request in the pipeline's words, with what to do about it."""
    from botocore import exceptions as aws

    if isinstance(error, aws.ClientError):
        return _of_response(error, where)
    if isinstance(error, aws.ProfileNotFound):
        return ConfigError(str(error), where=where, hint="correct AWS_PROFILE, or add it to ~/.aws/config")
    if isinstance(error, (aws.CredentialRetrievalError, aws.NoCredentialsError, aws.PartialCredentialsError,
                          aws.SSOError, aws.TokenRetrievalError)):  # fmt: skip
        return Terminal(f"no credentials for S3: {error}", where=where, hint=_CREDENTIALS_HINT)
    if isinstance(error, aws.SSLError):
        return Transient(str(error), where=where, hint="trust the endpoint's certificate: AWS_CA_BUNDLE")
    if isinstance(error, (aws.ParamValidationError, aws.NoRegionError, aws.BaseEndpointResolverError, ValueError)):
        return ConfigError(str(error), where=where, hint="correct store.endpoint, store.uri and AWS_DEFAULT_REGION")
    hint = "check the network and store.endpoint, then run it again"
    return Transient(f"no answer from S3: {error}", where=where, hint=hint)


def _of_response(error: Any, where: str) -> PipelineError:
    details = error.response.get("Error", {})
    code = str(details.get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    message = f"{error.operation_name}: {code}: {details.get('Message', '')}"
    if code in _KINDS:
        kind, hint = _KINDS[code]
        return kind(message, where=where, hint=hint)
    if code in _REFUSED or status in _REFUSALS:
        return Terminal(f"S3 refused {message}", where=where, hint=_CREDENTIALS_HINT)
    if status >= _SERVER_ERROR or status == _TOO_MANY:
        return Transient(f"S3 cannot serve {message}", where=where, hint=_AGAIN)
    return Terminal(message, where=where, hint="check the store's configuration and the bucket's policy")
