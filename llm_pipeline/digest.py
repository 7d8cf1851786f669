"""Digests of files and of configuration: the names of everything that is stored."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

_BLOCK = 1024 * 1024


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex.

    Raises:
        OSError: The file cannot be read.
    """
    hasher = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            hasher.update(block)
    return hasher.hexdigest()


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
