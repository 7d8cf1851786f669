"""Data sets that this machine has fetched: `work_root/datasets/NAME/COMMIT/`, so that each file comes once.

What a release reads is copied from there, so one that nobody has asked for in a long time can go: whoever wants it
again fetches it again. A file beside its directory is its lock, and says when it was asked for last.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from llm_pipeline.base.directory_listing import list_directories, walk_files
from llm_pipeline.base.file_lock import flocked

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class KeptDataSet:
    """A data set at a commit: its directory, when it was asked for last, and its bytes."""

    path: Path
    used_at: datetime
    bytes: int


@contextmanager
def using(directory: Path) -> Iterator[None]:
    """Have a data set's directory, made if need be, to oneself; another process that fetches it is waited for."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    lock = _lock_of(directory)
    lock.touch()
    with flocked(lock):
        directory.mkdir(exist_ok=True)
        yield


def kept_data_sets(root: Path) -> Iterator[KeptDataSet]:
    """All below a directory: `organisation/name/commit`, or `name/commit` of the oldest."""
    for first in list_directories(root):
        for second in list_directories(first):
            for path in (second, *list_directories(second)):
                if _COMMIT.fullmatch(path.name) and (used_at := _used_at(path)) is not None:
                    yield KeptDataSet(path, used_at, sum(file.lstat().st_size for file in walk_files(path)))


def remove_kept(kept: KeptDataSet) -> bool:
    """Remove a data set; returns False, and keeps it, if it came into use meanwhile.

    Raises:
        OSError: It cannot be removed.
    """
    with flocked(_lock_of(kept.path)):
        if _used_at(kept.path) != kept.used_at:
            return False
        shutil.rmtree(kept.path)
        return True


def _lock_of(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.lock")


def _used_at(directory: Path) -> datetime | None:
    with contextlib.suppress(FileNotFoundError):
        return datetime.fromtimestamp(_lock_of(directory).stat().st_mtime, UTC)
    return None
