"""Real permission errors: root reads everything, so for these tests root becomes somebody else for a while."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

NOBODY = 65534


@contextlib.contextmanager
def directory_for_everyone() -> Iterator[Path]:
    """A temporary directory that another user can reach: pytest's own ones are for the user who runs it."""
    directory = Path(tempfile.mkdtemp(prefix="llm-pipeline-test-"))
    directory.chmod(0o777)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@contextlib.contextmanager
def without_root(directory: Path) -> Iterator[None]:
    """Everything below the directory belongs to another user, and that user is us."""
    if os.geteuid() != 0:
        yield
        return
    for path in (directory, *directory.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@contextlib.contextmanager
def mode(path: Path, bits: int) -> Iterator[None]:
    """Permissions for a while."""
    before = path.stat().st_mode
    path.chmod(bits)
    try:
        yield
    finally:
        path.chmod(before)
