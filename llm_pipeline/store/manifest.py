"""Manifests: what an artifact holds, file by file, and the digest that names it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pydantic import Field, JsonValue

from llm_pipeline.digest import sha256_file, sha256_json
from llm_pipeline.errors import IntegrityError
from llm_pipeline.stages.contract import Frozen
from llm_pipeline.store.artifact_store import Difference

MANIFEST_FILE = "_MANIFEST.json"
COMPLETE_FILE = "_COMPLETE.json"
_MARKERS = frozenset({MANIFEST_FILE, COMPLETE_FILE})


class ManifestFile(Frozen):
    """One file: POSIX path below the artifact, size in bytes, SHA-256 in hex."""

    path: str
    size: int
    sha256: str


class Manifest(Frozen):
    """The files of an artifact, sorted by path, and where they came from."""

    kind: str
    files: tuple[ManifestFile, ...]
    provenance: dict[str, JsonValue] = Field(default={})

    @property
    def digest(self) -> str:
        """SHA-256 over kind and files; provenance does not count, so equal content has one name."""
        return sha256_json({"kind": self.kind, "files": [file.model_dump() for file in self.files]})

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def inventory(directory: Path) -> tuple[ManifestFile, ...]:
    """Hash every regular file below a directory.

    Raises:
        IntegrityError: It holds a symbolic link, a device, or no file at all.
    """
    files = []
    for root, directories, names in os.walk(directory):
        directories.sort()
        for name in sorted(directories + names):
            path = Path(root) / name
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode) or (Path(root) == directory and name in _MARKERS):
                continue
            if not stat.S_ISREG(mode):
                raise IntegrityError("an artifact holds regular files only", where=str(path))
            relative = path.relative_to(directory).as_posix()
            files.append(ManifestFile(path=relative, size=path.stat().st_size, sha256=sha256_file(path)))
    if not files:
        raise IntegrityError("nothing to publish: the directory holds no file", where=str(directory))
    return tuple(sorted(files, key=lambda file: file.path))


def differences(manifest: Manifest, directory: Path) -> list[Difference]:
    """How a directory differs from its manifest: missing, extra, changed."""
    try:
        found = {file.path: file for file in inventory(directory)}
    except IntegrityError as error:
        return [Difference(path=error.where, problem=error.message)]
    wanted = {file.path: file for file in manifest.files}
    result = [Difference(path, "missing") for path in sorted(wanted.keys() - found.keys())]
    result += [Difference(path, "not in the manifest") for path in sorted(found.keys() - wanted.keys())]
    for path in sorted(wanted.keys() & found.keys()):
        if wanted[path] != found[path]:
            result.append(Difference(path, f"changed: SHA-256 is {found[path].sha256}, not {wanted[path].sha256}"))
    return result
