"""Git's ids of blobs, of files in LFS, and of trees: names of content that everybody computes alike.

The object formats: https://git-scm.com/book/en/v2/Git-Internals-Git-Objects; the pointer that Git keeps in place of a
file in LFS: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash


def blob_hasher(size: int) -> _Hash:
    """A hasher of the id of a blob of that many bytes; feed it the content."""
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


def blob_id(data: bytes) -> str:
    """Git's id of a blob with that content."""
    return _object_id("blob", data)


def lfs_pointer(sha256: str, size: int) -> bytes:
    """What Git keeps of a file in LFS."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def commit_id(blobs: Mapping[str, str]) -> str:
    """Git's id of a commit with that tree and nothing else in it: no parent, author or date.

    `blobs` has the blob id of each path, with `/`.
    """
    tree = _tree_id({PurePosixPath(path).parts: blob for path, blob in blobs.items()})
    return _object_id("commit", f"tree {tree}\n".encode())


def _object_id(kind: str, data: bytes) -> str:
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(data)) + data, usedforsecurity=False).hexdigest()


def _tree_id(files: Mapping[tuple[str, ...], str]) -> str:
    blobs = {parts[0]: blob for parts, blob in files.items() if len(parts) == 1}
    folders: dict[str, dict[tuple[str, ...], str]] = {}
    for parts, blob in files.items():
        if len(parts) > 1:
            folders.setdefault(parts[0], {})[parts[1:]] = blob
    rows = [(name, b"100644", blob) for name, blob in blobs.items()]
    rows += [(f"{name}/", b"40000", _tree_id(inside)) for name, inside in folders.items()]  # Git sorts them so
    content = b"".join(
        mode + b" " + name.rstrip("/").encode() + b"\0" + bytes.fromhex(blob) for name, mode, blob in sorted(rows)
    )
    return _object_id("tree", content)
