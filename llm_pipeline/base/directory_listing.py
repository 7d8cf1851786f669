"""Listings of directories in which nothing is left out silently.

`Path.glob`, `Path.rglob` and `os.walk` skip a directory that they cannot read, so a caller takes what is in it for
gone. These functions raise instead. What another process removes meanwhile is no error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from llm_pipeline.base.errors import Transient


def list_directory(directory: Path) -> list[Path]:
    """The entries of a directory, sorted; none if there is no such directory.

    Raises:
        Transient: It cannot be read, or it is a link that leads nowhere (a file system that is not mounted).
    """
    return [Path(entry.path) for entry in _scan(directory)]


def list_directories(directory: Path) -> list[Path]:
    """The directories in a directory, and links to directories, sorted.

    Raises:
        Transient: As `list_directory`, also for a link in it that leads nowhere.
    """
    found = []
    for entry in _scan(directory):
        try:
            if entry.is_symlink():
                Path(entry.path).stat()
            if entry.is_dir():
                found.append(Path(entry.path))
        except OSError as error:
            raise _unreadable(Path(entry.path), error) from error
    return found


def walk_files(directory: Path) -> Iterator[Path]:
    """All below a directory that is no directory itself, links included: they are not followed.

    Raises:
        Transient: The directory or one below it cannot be read.
    """
    for entry in _scan(directory):
        if entry.is_dir(follow_symlinks=False):
            yield from walk_files(Path(entry.path))
        else:
            yield Path(entry.path)


def refuse_unreadable(error: OSError) -> None:
    """For `os.walk(..., onerror=refuse_unreadable)`, which otherwise leaves out what it cannot read.

    Raises:
        Transient: Always, unless the directory was removed meanwhile.
    """
    if not isinstance(error, FileNotFoundError):
        raise _unreadable(Path(str(error.filename)), error) from error


def _scan(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError as error:
        if directory.is_symlink():
            raise _unreadable(directory, error) from error
        return []
    except OSError as error:
        raise _unreadable(directory, error) from error


def _unreadable(path: Path, error: OSError) -> Transient:
    hint = "make it readable for the user that runs this, then try again"
    if isinstance(error, NotADirectoryError):
        hint = "a file lies where a directory should: move it away, or name another directory"
    return Transient(f"cannot list {path}: {error.strerror or error}", where=str(path), hint=hint)
