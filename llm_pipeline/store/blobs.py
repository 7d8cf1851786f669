"""The port that a store stands on: five operations on small blobs, and files that stream.

Two implementations: `file_blobs` on a file system, `s3_blobs` in a bucket. Names are relative, with `/` between parts.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from llm_pipeline.base.errors import Transient
from llm_pipeline.base.records import Frozen

ANY = "*"
"""Instead of a revision: whatever is there, and if nothing is."""

WORKERS = 8
"""Requests in flight at once, and files that are hashed at once."""

_BACKOFF_UNIT_SECONDS = 0.1

T = TypeVar("T")
S = TypeVar("S")


class Changed(Transient):
    """A blob is not, or no longer, what a conditional operation expects."""


@dataclass(frozen=True)
class Blob:
    """A small blob as it was read; its revision is another one as soon as its bytes are."""

    data: bytes
    revision: str
    changed_at: datetime


@dataclass(frozen=True)
class Listed:
    """A blob as a listing shows it; its revision is empty where a listing has none."""

    name: str
    size: int
    revision: str
    changed_at: datetime


class LocalFile(NamedTuple):
    """A file to store, and its SHA-256 in hex."""

    path: Path
    sha256: str


class Leftover(Frozen):
    """What an interrupted publication left behind: no artifact, and of no use except to resume it.

    Attributes:
        name: The artifact, or the transfer.
        bytes: How much space it takes; 0 when that is not known.
        changed_at: When it was last added to.
        transfer: Whether it is one file's transfer that did not end, not files of an artifact.
    """

    name: str
    bytes: int
    changed_at: datetime
    transfer: bool = False


class Blobs(Protocol):
    """What keeps bytes under names.

    Every operation raises Transient when the medium fails, and Terminal or ConfigError when it refuses.
    """

    @property
    def root(self) -> Path | None:
        """The directory whose files the blobs are; None where they must be copied to be read as files."""

    def address(self, name: str) -> str:
        """A path or URI, for messages."""

    def get(self, name: str) -> Blob | None:
        """A small blob, or None.

        Raises:
            IntegrityError: What is there is no small blob.
        """

    def put(self, name: str, data: bytes, expect: str | None = ANY) -> str:
        """Write a small blob if its revision is `expect` (None: if there is none); returns the new revision.

        Raises:
            Changed: It is not, or an earlier attempt whose answer was lost made it so.
        """

    def list(self, below: str) -> Iterator[Listed]:
        """All blobs in a directory and its directories, those of one directory together; none if there is none."""

    def delete(self, name: str, expect: str = ANY) -> None:
        """Remove a blob if its revision is `expect`; nothing happens if there is none.

        Raises:
            Changed: It is another one.
        """

    def delete_all(self, names: Sequence[str]) -> None:
        """Remove many blobs that nobody changes conditionally, if they are there."""

    def upload(self, files: Mapping[str, LocalFile], *, link: bool) -> None:
        """Bring files to blobs of these names, whatever is there; they are durable when this returns.

        Args:
            files: By the blobs' names.
            link: Whether a file may become the blob itself, where that is possible: its owner needs it no more.
        """

    def sha256(self, item: Listed) -> str:
        """SHA-256 of a blob's bytes, in hex; all are read, and none is kept.

        Raises:
            Changed: It is not any more what was listed.
            IntegrityError: It is no regular file.
        """

    def stated_sha256(self, item: Listed) -> str | None:
        """The same as the medium itself states it, without a transfer; None if it states none."""

    def unfinished(self) -> Iterator[Leftover]:
        """Transfers that did not end, or have not yet."""

    def drop(self, leftover: Leftover) -> None:
        """Remove what an unfinished transfer has brought, if it is there."""


def back_off(attempt: int) -> None:
    """Wait before the attempt after this one (0 is the first): exponential, with full jitter."""
    time.sleep(random.random() * _BACKOFF_UNIT_SECONDS * 2**attempt)  # noqa: S311 - jitter, not a secret


def in_parallel(function: Callable[[T], S], items: Iterable[T]) -> list[S]:
    """Apply a function to all items in threads; the first error ends what has not begun and is raised."""
    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(function, items))
