"""Opening files that a configuration names: they may be anything, and opening a FIFO or a device may never end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from llm_pipeline.base.errors import ConfigError, as_pipeline_error

DATA_FILE_BYTES = 2**30
"""Largest file of prompts, of a trace or of calibration texts: `plan` reads all of it."""

_OF_THE_USER = frozenset({errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR, errno.ENXIO})


def read_plain_file(path: Path, maximum_bytes: int) -> bytes:
    """The file's first bytes; anything but a regular file is refused without waiting for it.

    Raises:
        FileNotFoundError: There is none.
        ConfigError: It is no regular file, or this user may not read it.
        Transient: The machine failed to read it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError("cannot be read: it is no regular file", where=str(path))
            return stream.read(maximum_bytes)
    except FileNotFoundError:
        raise
    except IsADirectoryError as error:
        raise ConfigError("cannot be read: it is a directory", where=str(path)) from error
    except OSError as error:
        if error.errno in _OF_THE_USER:
            raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from error
        raise as_pipeline_error(error, where=str(path)) from error


def problem_of_plain_file(path: Path, maximum_bytes: int) -> str:
    """What keeps a file from being read as a whole, to follow its name; empty if nothing does.

    Raises:
        OSError: There is no such file, or it cannot be looked at.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        return "is no regular file"
    if found.st_size > maximum_bytes:
        return f"has {found.st_size} bytes, more than {maximum_bytes}"
    return "" if os.access(path, os.R_OK) else "cannot be read by this user"
