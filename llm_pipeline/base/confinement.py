"""Runs one function that can read only named directories and reach no network, by Landlock of the Linux kernel.

    model = confined(lambda: load(checkpoint), readable=[checkpoint])
    server = confined(lambda: start(program), readable=[repository], network=True)

The restriction holds for one new thread and the threads and processes that it starts, so the rest of the program goes
on as before, and a server that is started inside stays confined for all its life. It binds code in C++ and Rust as
well, of which Python's audit hooks see nothing, and needs no root
(https://docs.kernel.org/userspace-api/landlock.html). What it does not cover: writing files, listing directories, UDP,
and files that are open already.

Python's own installation and the system's directories stay readable, for libraries are imported late. A kernel without
Landlock (before Linux 5.13, or where it is switched off) is told of once in the log, and the function runs unconfined;
denying TCP needs Linux 6.7.
"""

from __future__ import annotations

import contextvars
import ctypes
import errno
import functools
import os
import stat
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from llm_pipeline.base.logging import get_logger

log = get_logger(__name__)

_Result = TypeVar("_Result")

# Numbers of <linux/landlock.h>, the same on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_RULE_PATH_BENEATH = 1
_READ_FILE = 1 << 2
_MOVE_BETWEEN_DIRECTORIES = 1 << 13  # denied to whoever restricts itself, unless it asks: compilers need it
_VERSION_WITH_MOVES = 2
_BIND_AND_CONNECT_TCP = 0b11
_VERSION_WITH_TCP = 4
_NO_NEW_PRIVILEGES = 38  # prctl; without it only root may restrict itself

_SYSTEM = ("/bin", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/nix/store", "/proc", "/sbin", "/sys", "/usr")
_DRIVER_PIPES = "/tmp/nvidia-mps"  # noqa: S108 - the default of CUDA's multi-process service, which is only read


def confined(function: Callable[[], _Result], readable: Iterable[Path], *, network: bool = False) -> _Result:
    """The result of a function that can read files only in some directories, and by default open no TCP connection.

    A signal handler that raises ends the wait at once; the function then goes on in a thread that ends with the
    process.

    Args:
        function: What to run. It runs in a thread of its own, with this thread's context variables.
        readable: Directories, and files, that it may read beside the system's and Python's own.
        network: Whether it may connect and listen, as a server must.

    Raises:
        OSError: The kernel has Landlock and refuses to use it.
    """
    roots = tuple(_roots(tuple(path.resolve() for path in readable)))
    outcome: Future[_Result] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            _restrict_this_thread(roots, network=network)
            outcome.set_result(context.run(function))
        except BaseException as error:  # noqa: BLE001 - it is raised again where the result is waited for
            outcome.set_exception(error)

    tempfile.gettempdir()  # looked for once a process, with a file that is read: libraries ask for it late
    threading.Thread(target=run, name="confined", daemon=True).start()
    return outcome.result()


@functools.cache
def landlock_version() -> int:
    """Version of Landlock's interface in this kernel; 0 without it."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, int(_libc().syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)))


def _restrict_this_thread(roots: Iterable[Path], *, network: bool) -> None:
    version = landlock_version()
    if not version:
        _tell_once()
        return
    tcp = _BIND_AND_CONNECT_TCP if version >= _VERSION_WITH_TCP and not network else 0
    files = _READ_FILE | (_MOVE_BETWEEN_DIRECTORIES if version >= _VERSION_WITH_MOVES else 0)
    attributes = struct.pack("=QQ", files, tcp) if tcp else struct.pack("=Q", files)
    ruleset = _call(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for root in roots:
            _allow(ruleset, root, files)
        if _libc().prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "cannot give up new privileges")
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, root: Path, access: int) -> None:
    try:
        descriptor = os.open(root, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # nothing there that could be read
    try:
        granted = access if stat.S_ISDIR(os.fstat(descriptor).st_mode) else _READ_FILE
        _call(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", granted, descriptor), 0)
    finally:
        os.close(descriptor)


def _roots(readable: tuple[Path, ...]) -> Iterator[Path]:
    """What stays readable; of `sys.path`, nothing that holds the named directories, as a checkout may."""
    yield from readable
    yield from map(Path, _SYSTEM)
    yield from map(Path, (sys.prefix, sys.base_prefix))
    yield Path(__file__).parents[1]  # this package
    yield Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", _DRIVER_PIPES))
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for root in (Path(entry).resolve() for entry in ("/opt", *sys.path, *libraries) if entry):
        if not any(path.is_relative_to(root) for path in readable):
            yield root


@functools.cache
def _tell_once() -> None:
    log.warning(
        "this kernel has no Landlock: loaders are kept to a model's directory by the check of its files alone",
        hint="use Linux 5.13 or newer, and a container runtime that lets its system calls through",
    )


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: int | bytes) -> int:
    result = int(_libc().syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)} ({errno.errorcode.get(code, code)})")
    return result
