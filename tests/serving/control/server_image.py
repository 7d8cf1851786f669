"""An image with a tritonserver where NVIDIA's have theirs, made of this machine's own files at their own paths."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PROGRAM = """#!/bin/bash
export LD_LIBRARY_PATH={library}:{home}/nvidia_pytriton.libs PATH={bin}:/usr/bin:/bin
exec {home}/pytriton/tritonserver/bin/tritonserver "$@" --backend-directory={runtime}/backends \\
    --cache-directory={runtime}/caches
"""
_PLACES = ("etc", "proc", "sys", "dev", "tmp", "run", "root")
_LINKS = ("bin", "lib", "lib64", "sbin")
_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")


def make_server_image(client: Any, path: Path, *, home: Path, python: Path, base: Path, runtime: Path) -> str:
    """Import the image; returns its name.

    Args:
        client: Of the container engine.
        path: Where the image's archive is written.
        home: The unpacked wheel of the server.
        python: The stub's interpreter, of a virtual environment that has numpy.
        base: Prefix of the interpreter that the environment was made from.
        runtime: Backends with the stub of that interpreter.
    """
    environment, standard = python.parents[1], base / "lib" / "python3.11"
    program = _PROGRAM.format(home=home, runtime=runtime, library=base / "lib", bin=python.parent)
    whole = [home, runtime, *(environment / "lib/python3.11/site-packages").glob("numpy*")]
    programs = [Path("/bin/bash"), base / "bin/python3.11"]
    files = [*programs, *python.parent.glob("python*"), environment / "pyvenv.cfg", *(base / "lib").glob("libpython3*")]
    binaries = [path for root in (*whole, standard / "lib-dynload") for path in root.rglob("*") if _is_binary(path)]
    files += [*_standard(standard), *_libraries([*programs, *binaries], home, base)]
    with tarfile.open(path, "w") as archive:
        for name in _PLACES:
            _add(archive, name, tarfile.DIRTYPE)
        for name in _LINKS:
            _add(archive, name, tarfile.SYMTYPE, link=f"usr/{name}")
        for name, one in {_inside(one): one for one in [*whole, *files] if not _is_within(one, whole)}.items():
            archive.add(one, name)
        _add(archive, "opt/tritonserver/bin/tritonserver", tarfile.REGTYPE, data=program.encode())
    client.api.import_image_from_file(str(path), repository="llm-test/tritonserver", tag="latest")
    return "llm-test/tritonserver:latest"


def _add(archive: tarfile.TarFile, name: str, kind: bytes, *, link: str = "", data: bytes = b"") -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.linkname, entry.size = kind, 0o755, link, len(data)
    archive.addfile(entry, io.BytesIO(data))


def _inside(path: Path) -> str:
    """Below /usr where the file system has a link to it."""
    name = str(path).removeprefix("/")
    return f"usr/{name}" if name.split("/")[0] in _LINKS else name


def _is_within(path: Path, directories: list[Path]) -> bool:
    return any(path != one and path.is_relative_to(one) for one in directories)


def _standard(library: Path) -> Iterator[Path]:
    left_out = ("site-packages", "test", "ensurepip", "idlelib", "tkinter", "__pycache__")
    return (path for path in library.iterdir() if path.name not in left_out and not path.name.startswith("config-"))


def _is_binary(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.open("rb").read(4) == b"\x7fELF"


def _libraries(binaries: list[Path], home: Path, base: Path) -> Iterator[Path]:
    """What the loader finds for them outside the image's whole directories."""
    variables = {"LD_LIBRARY_PATH": f"{base}/lib:{home}/nvidia_pytriton.libs", "PATH": "/usr/bin:/bin"}
    told = subprocess.run(["ldd", *binaries], env=variables, capture_output=True, text=True, check=False).stdout
    for found in sorted(set(_LIBRARY.findall(told))):
        path = Path(found)
        yield path
        if path.is_symlink():
            yield path.resolve()
