"""Reading a source's files from this machine's disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from llm_pipeline.hub.model_card import MAXIMUM_CARD_BYTES, card_fields, stated_license
from llm_pipeline.hub.source import Body, SourceRefused

_BLOCK = 1024 * 1024


@contextmanager
def open_body(path: Path, start: int, where: str) -> Iterator[Body]:
    """A regular file's bytes from `start` on; a link in its place is not followed.

    Raises:
        SourceRefused: It is gone, may not be read, or is no regular file.
    """
    with _open_regular(path, where) as stream:
        stream.seek(start)
        yield Body(start=start, chunks=iter(lambda: stream.read(_BLOCK), b""))


def read_part(path: Path, start: int, length: int) -> bytes:
    """Some bytes of a regular file; fewer at its end.

    Raises:
        SourceRefused: As `open_body`.
    """
    with _open_regular(path, str(path)) as stream:
        stream.seek(start)
        parts = []
        while length > 0 and (part := stream.read(length)):
            parts.append(part)
            length -= len(part)
        return b"".join(parts)


@contextmanager
def _open_regular(path: Path, where: str) -> Iterator[BinaryIO]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a named pipe would block for ever
    except OSError as error:
        raise SourceRefused(
            f"cannot be read: {error.strerror}", where=where, hint="resolve the release again"
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SourceRefused("not a regular file", where=where, hint="only regular files are read")
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        yield stream


def license_of(card: Path) -> str | None:
    """The licence that a card on disk states; None without a card.

    Raises:
        SourceRefused: The card cannot be read.
    """
    if not card.exists():
        return None
    with _open_regular(card, str(card)) as stream:
        text = stream.read(MAXIMUM_CARD_BYTES).decode(errors="replace")
    return stated_license(card_fields(text))
