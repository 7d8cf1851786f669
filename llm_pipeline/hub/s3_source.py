"""An S3 prefix as a source: pinned by entity tag and version, so that an object that changes is never read in part."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from llm_pipeline.artifacts.model_files import WEIGHTS_SUFFIX, select_files
from llm_pipeline.artifacts.pinned import HubFile, ObjectVersion, PinnedModel
from llm_pipeline.base.errors import IntegrityError, PipelineError, Terminal, Transient
from llm_pipeline.base.timed_connection import AnswerTooLong
from llm_pipeline.config.store import StoreConfig
from llm_pipeline.hub.directory_source import LARGE_BYTES, require_revision
from llm_pipeline.hub.git_ids import blob_id, commit_id, lfs_pointer
from llm_pipeline.hub.model_card import CARD_FILE, MAXIMUM_CARD_BYTES, card_fields, stated_license
from llm_pipeline.hub.resolve import report_resolved
from llm_pipeline.hub.source import Body, ModelLook, SourceRefused, SourceTooSlow, SourceUnavailable, WrongBytes

_CHUNK = 256 * 1024
_ASKED_AT_ONCE = 8


@dataclass(frozen=True)
class S3Source:
    """An S3 prefix that a model is read from.

    Attributes:
        access: Bucket and prefix as `uri`, and how it is reached.
    """

    access: StoreConfig
    _place: tuple[str, str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_place", self.access.bucket_and_prefix)

    def resolve(self, model_id: str, revision: str) -> PinnedModel:
        """Pins the objects: small ones are read and hashed, large ones pinned by what S3 states of them."""
        where = self.access.uri
        paths = list(self._sizes())
        selection = select_files(paths, where=where)
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
            pinned = list(pool.map(self._pin, selection.fetched))
        model = PinnedModel(
            id=model_id,
            commit=commit_id({file.path: _blob_in_tree(file) for file, _ in pinned}),
            files=tuple(file for file, _ in pinned),
            license=self._license() if CARD_FILE in paths else None,
            versions={file.path: version for file, version in pinned},
        )
        require_revision(model.commit, revision, where)
        report_resolved(model, selection)
        return model

    def look(self, model_id: str, revision: str) -> ModelLook:
        """Looks at the prefix as it is; it has no revisions."""
        del model_id, revision
        sizes = self._sizes()
        fetched = select_files(sizes, where=self.access.uri).fetched

        def read(path: str, start: int, length: int) -> bytes:
            if not length:
                return b""
            with self._errors_at(path):
                return self._bytes(length, **self._object(path), Range=f"bytes={start}-{start + length - 1}")

        return ModelLook(self.access.uri, {path: sizes[path] for path in fetched}, read)

    @contextmanager
    def open(self, model: PinnedModel, file: HubFile, start: int) -> Iterator[Body]:
        version = model.versions.get(file.path)
        if version is None:
            raise SourceRefused("no version of it was pinned", where=file.path, hint="resolve the release again")
        options = {"Range": f"bytes={start}-"} if start else {"ChecksumMode": "ENABLED"}
        if version.version_id is not None:
            options["VersionId"] = version.version_id
        with self._errors_at(file.path):
            answer = self._ask("get_object", **self._object(file.path), IfMatch=version.entity_tag, **options)
            if start and not str(answer.get("ContentRange", "")).startswith(f"bytes {start}-"):
                answer["Body"].close()
                raise SourceUnavailable("the answer is not the requested part", where=file.path)
            with closing(answer["Body"]) as stream:
                yield Body(start=start, chunks=stream.iter_chunks(_CHUNK))

    @cached_property
    def _client(self) -> Any:
        from llm_pipeline.store.s3_session import connect

        return connect(self.access)

    def _ask(self, operation: str, **parameters: str) -> Any:
        """The answer to a request, which is repeated if the answer breaks off."""
        from llm_pipeline.store.s3_answers import until_whole

        return until_whole(lambda: getattr(self._client, operation)(**parameters))

    def _bytes(self, longest: int, **parameters: str) -> bytes:
        """The whole body of a small object, which has at most so many bytes."""
        from llm_pipeline.store.s3_answers import until_whole, whole_body

        try:
            return until_whole(lambda: whole_body(self._client.get_object(**parameters), longest))
        except AnswerTooLong as error:
            raise SourceRefused(str(error), where=parameters["Key"]) from error

    def _object(self, path: str) -> dict[str, str]:
        bucket, prefix = self._place
        return {"Bucket": bucket, "Key": f"{prefix}/{path}"}

    def _sizes(self) -> dict[str, int]:
        """Bytes of each object, by its path below the prefix."""
        bucket, prefix = self._place
        with self._errors_at(""):
            entries = [entry for page in self._pages(bucket, f"{prefix}/") for entry in page.get("Contents", [])]
        return {
            entry["Key"].removeprefix(f"{prefix}/"): int(entry["Size"])
            for entry in entries
            if not entry["Key"].endswith("/")
        }

    def _pages(self, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
        from llm_pipeline.store.s3_answers import following_page, until_whole

        marker: dict[str, Any] = {}

        def ask() -> tuple[dict[str, Any], dict[str, Any]]:
            page = self._client.list_objects_v2(Bucket=bucket, Prefix=prefix, **marker)
            return page, following_page(page, {"ContinuationToken": "NextContinuationToken"}, marker)

        while True:
            page, marker = until_whole(ask)
            yield page
            if not marker:
                return

    def _pin(self, path: str) -> tuple[HubFile, ObjectVersion]:
        with self._errors_at(path):
            head = self._ask("head_object", **self._object(path), ChecksumMode="ENABLED")
        size, version = int(head["ContentLength"]), _version(head)
        sha256 = _stored_sha256(head)
        if path.endswith(WEIGHTS_SUFFIX) or size >= LARGE_BYTES:
            blob = blob_id(lfs_pointer(sha256, size)) if sha256 else None
            tag = None if sha256 else version.entity_tag
            return HubFile(path=path, size=size, sha256=sha256, blob_sha1=blob, entity_tag=tag), version
        data = self._read(path, version)
        file = HubFile(path=path, size=size, sha256=hashlib.sha256(data).hexdigest(), blob_sha1=blob_id(data))
        return file, version

    def _read(self, path: str, version: ObjectVersion) -> bytes:
        with self._errors_at(path):
            return self._bytes(LARGE_BYTES, **self._object(path), IfMatch=version.entity_tag)

    def _license(self) -> str | None:
        with self._errors_at(CARD_FILE):
            wanted = {**self._object(CARD_FILE), "Range": f"bytes=0-{MAXIMUM_CARD_BYTES}"}
            text = self._bytes(MAXIMUM_CARD_BYTES + 1, **wanted).decode(errors="replace")
        return stated_license(card_fields(text))

    @contextmanager
    def _errors_at(self, path: str) -> Iterator[None]:
        """Raise S3's errors as a source's."""
        from botocore.exceptions import FlexibleChecksumError

        from llm_pipeline.store.s3_answers import Incomplete, failed_requests

        where = f"{self.access.uri}/{path}".rstrip("/")
        try:
            yield
        except FlexibleChecksumError as error:
            raise WrongBytes(str(error), where=where) from error
        except Incomplete as error:
            raise SourceUnavailable(error.message, where=where, hint=error.hint) from error
        except failed_requests() as error:
            from llm_pipeline.store.s3_session import translated

            raise _as_source_error(translated(error, self.access, where)) from error


def _as_source_error(error: PipelineError) -> PipelineError:
    from llm_pipeline.store.s3_session import Absent, Changed, OverLimit

    if isinstance(error, Changed):
        return IntegrityError(
            "the object changed after the release was resolved", where=error.where, hint="resolve the release again"
        )
    if isinstance(error, Absent):
        return SourceRefused("there is no such object", where=error.where, hint="resolve the release again")
    if isinstance(error, OverLimit):
        return SourceTooSlow(error.message, where=error.where, hint=error.hint)
    if isinstance(error, Transient):
        return SourceUnavailable(error.message, where=error.where, hint=error.hint)
    return SourceRefused(error.message, where=error.where, hint=error.hint) if isinstance(error, Terminal) else error


def _version(head: dict[str, Any]) -> ObjectVersion:
    version_id = head.get("VersionId")
    return ObjectVersion(entity_tag=head["ETag"], version_id=None if version_id in (None, "null") else version_id)


def _stored_sha256(head: dict[str, Any]) -> str | None:
    """The SHA-256 of the whole object, if S3 keeps it: not for a multipart upload, which has one of its parts' ones.

    https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity-upload.html
    """
    value, in_parts = str(head.get("ChecksumSHA256", "")), "-" in head["ETag"]
    if not value or in_parts or head.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT":
        return None
    return base64.b64decode(value).hex()


def _blob_in_tree(file: HubFile) -> str:
    if file.blob_sha1 is not None:
        return file.blob_sha1
    return blob_id(f"s3 object\netag {file.entity_tag}\nsize {file.size}\n".encode())
