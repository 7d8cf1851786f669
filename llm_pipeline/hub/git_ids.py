"""Git's ids of blobs and of files in LFS, and an id for files that no commit names.

The object formats: https://git-scm.com/book/en/v2/Git-Internals-Git-Objects; the pointer that Git keeps in place of a
file in LFS: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from llm_pipeline.base.digest import canonical_json

if TYPE_CHECKING:
    from hashlib import _Hash


def blob_hasher(size: int) -> _Hash:
    """A hasher of the id of a blob of that many bytes; feed it the content."""
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


def blob_id(data: bytes) -> str:
    """Git's id of a blob with that content."""
    hasher = blob_hasher(len(data))
    hasher.update(data)
    return hasher.hexdigest()


def lfs_pointer(sha256: str, size: int) -> bytes:
    """What Git keeps of a file in LFS."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def content_commit(contents: Mapping[str, str]) -> str:
    """What stands in place of a commit where there is none: an id over a name of the content of each path."""
    return hashlib.sha1(canonical_json(dict(contents)), usedforsecurity=False).hexdigest()
