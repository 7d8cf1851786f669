"""Digests of files and of configuration: the names of everything that is stored."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llm_pipeline.base.progress import made_progress

_BLOCK = 256 * 1024  # stays in a core's cache between reading and what is done with it


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex.

    Raises:
        OSError: The file cannot be read.
    """
    hasher = hashlib.sha256()
    for block in blocks_of(path):
        hasher.update(block)
    return hasher.hexdigest()


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes to an open file; the system may take fewer at a time.

    Raises:
        OSError: It cannot be written.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def blocks_of(path: Path) -> Iterator[bytes]:
    """The bytes of a file, a block at a time; each block that was read is progress.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb", buffering=0) as stream:
        while block := stream.read(_BLOCK):
            made_progress()
            yield block


def sha256_bytes(data: bytes) -> str:
    """SHA-256 of bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and no white space: equal values give equal bytes.

    Raises:
        ValueError: The value holds NaN or an infinity.
        TypeError: The value is not JSON.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def sha256_json(value: Any) -> str:
    """SHA-256 of a JSON value's canonical form, in hex."""
    return sha256_bytes(canonical_json(value))
