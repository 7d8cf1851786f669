"""Changes to a disk that outlast a power cut."""

from __future__ import annotations

import contextlib
import ctypes
import os
import uuid
from pathlib import Path

from llm_pipeline.base.digest import blocks_of, write_all


def write_durably(path: Path, data: bytes) -> None:
    """Write a new file, on the disk when this returns.

    Raises:
        FileExistsError: There is one.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_file(source: Path, destination: Path) -> None:
    """Copy a file to a new one, which `sync_file_system` makes durable with others.

    Raises:
        OSError: The source cannot be read, or the destination exists or cannot be written.
    """
    descriptor = os.open(destination, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        for block in blocks_of(source):
            write_all(descriptor, block)
    finally:
        os.close(descriptor)


def replace_durably(path: Path, data: bytes) -> None:
    """Write a file by one rename: after a power cut there is the old content or the new one, never an empty file."""
    temporary = path.parent / f"{uuid.uuid4().hex}.partial"
    try:
        write_durably(temporary, data)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def make_directory(directory: Path) -> None:
    """Make a directory and those above it, each entered durably in the one above."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    with contextlib.suppress(FileExistsError):
        directory.mkdir()
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Make what was made, renamed or removed in a directory last."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file_system(directory: Path) -> None:
    """Make all below a directory durable at once: far quicker than file by file when there are thousands."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        system = ctypes.CDLL(None, use_errno=True)
        if system.syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(directory))
    finally:
        os.close(descriptor)
