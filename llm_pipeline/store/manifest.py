"""Manifests: what an artifact holds, file by file, where it came from, and the digest that names it.

Stored as an in-toto statement (`_MANIFEST.json`), beside an optional signature (`_SIGNATURE.json`) and the
completion marker (`_COMPLETE.json`), which is written last and seals both.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, field_validator

from llm_pipeline.base.digest import sha256_file, sha256_json
from llm_pipeline.base.directory_listing import walk_files
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.store.blobs import Blobs, Changed, Listed, in_parallel
from llm_pipeline.store.provenance import PREDICATE_TYPE, Provenance, from_predicate, to_predicate

MANIFEST_FILE = "_MANIFEST.json"
SIGNATURE_FILE = "_SIGNATURE.json"
COMPLETE_FILE = "_COMPLETE.json"
MARKERS = frozenset({MANIFEST_FILE, SIGNATURE_FILE, COMPLETE_FILE})
"""Files of an artifact that are the store's own, not its maker's."""

_STATEMENT_TYPE = "https://in-toto.io/Statement/v1"


@dataclass(frozen=True)
class Difference:
    """One way in which an artifact is not what its manifest says."""

    path: str
    problem: str


class ManifestFile(Frozen):
    """One file: POSIX path below the artifact, size in bytes, SHA-256 in hex."""

    path: str
    size: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")

    @field_validator("path")
    @classmethod
    def _stays_below(cls, path: str) -> str:
        if path in MARKERS or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
            raise ValueError(f"not the path of a file of an artifact: {path!r}")
        return path


class Manifest(Frozen):
    """The files of an artifact, sorted by path, and where they came from."""

    kind: str
    files: tuple[ManifestFile, ...]
    provenance: Provenance = Provenance()

    @property
    def digest(self) -> str:
        """SHA-256 over kind and files; provenance does not count, so equal content has one name."""
        return sha256_json({"kind": self.kind, "files": [file.model_dump() for file in self.files]})

    @property
    def ref(self) -> ArtifactRef:
        """The artifact's name: kind and digest."""
        return ArtifactRef(kind=self.kind, digest=self.digest)

    @property
    def size(self) -> int:
        """Bytes of all files, without the store's own."""
        return sum(file.size for file in self.files)

    def to_json(self) -> bytes:
        """The manifest as an in-toto statement."""
        subject = [
            {"name": file.path, "digest": {"sha256": file.sha256}, "annotations": {"size": file.size}}
            for file in self.files
        ]
        statement = {
            "_type": _STATEMENT_TYPE,
            "subject": subject,
            "predicateType": PREDICATE_TYPE,
            "predicate": to_predicate(self.kind, self.provenance),
        }
        return json.dumps(statement, indent=1, ensure_ascii=False, allow_nan=False).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """Read a statement that `to_json` wrote.

        Raises:
            IntegrityError: It is not a manifest.
        """
        try:
            statement: dict[str, Any] = json.loads(data)
            form = (statement["_type"], statement["predicateType"])
            kind, made = from_predicate(statement["predicate"])
            files = tuple(
                ManifestFile(path=item["name"], size=item["annotations"]["size"], sha256=item["digest"]["sha256"])
                for item in statement["subject"]
            )
        except (ValueError, LookupError, TypeError, RecursionError) as error:  # pydantic's errors are ValueErrors
            raise IntegrityError(f"not a manifest: {type(error).__name__}: {error}") from error
        if form != (_STATEMENT_TYPE, PREDICATE_TYPE):
            raise IntegrityError(f"not a manifest: a statement of the form {form}")
        return cls(kind=kind, files=files, provenance=made)


class FileState(NamedTuple):
    """What changes when a file does: size in bytes, time of the last change, and inode."""

    size: int
    changed_ns: int
    inode: int


def regular_files(directory: Path) -> dict[str, FileState]:
    """The files of an artifact below its directory, by POSIX path; the store's own are left out.

    Raises:
        IntegrityError: It holds a symbolic link or a device.
    """
    found: dict[str, FileState] = {}
    for path in walk_files(directory):
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise IntegrityError("an artifact holds regular files only", where=str(path))
        found[path.relative_to(directory).as_posix()] = FileState(status.st_size, status.st_mtime_ns, status.st_ino)
    return {path: state for path, state in found.items() if path not in MARKERS}


def inventory(directory: Path, before: Mapping[str, FileState]) -> tuple[ManifestFile, ...]:
    """Hash the files of a directory, those that `regular_files` found, in threads, as that frees the interpreter.

    Raises:
        IntegrityError: There is none, or one was removed meanwhile.
    """
    if not before:
        raise IntegrityError("nothing to publish: the directory holds no file", where=str(directory))
    largest_first = sorted(before, key=lambda path: before[path].size, reverse=True)
    try:
        digests = in_parallel(lambda path: sha256_file(directory / path), largest_first)
    except FileNotFoundError as error:
        raise IntegrityError("a file was removed meanwhile", where=str(error.filename)) from error
    made = sorted(zip(largest_first, digests, strict=True))
    return tuple(ManifestFile(path=path, size=before[path].size, sha256=sha256) for path, sha256 in made)


def require_unchanged(directory: Path, before: Mapping[str, FileState]) -> None:
    """Refuse a directory in which something changed.

    Args:
        directory: The directory.
        before: What `regular_files` said of it.

    Raises:
        IntegrityError: A file was added, removed, written to or replaced since then.
    """
    after = regular_files(directory)
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path):
            hint = "publish it again once nothing writes to it"
            problem = "a file was added, removed or changed while it was published"
            raise IntegrityError(problem, where=str(directory / path), hint=hint)


Files = Mapping[str, Listed]
"""The files of an artifact by their paths in it, without the store's own."""


def files_of(blobs: Blobs, directory: str) -> Files:
    """What lies in an artifact's directory."""
    listed = {item.name.removeprefix(f"{directory}/"): item for item in blobs.list(directory)}
    return {path: item for path, item in listed.items() if path not in MARKERS}


def listing_differences(manifest: Manifest, files: Files) -> list[Difference]:
    """How a listing differs from a manifest: missing, extra, or of another size."""
    wanted = {file.path: file for file in manifest.files}
    found = [Difference(path, "missing") for path in sorted(wanted.keys() - files.keys())]
    found += [Difference(path, "not in the manifest: an extra file") for path in sorted(files.keys() - wanted.keys())]
    for path in sorted(wanted.keys() & files.keys()):
        if wanted[path].size != files[path].size:
            found.append(Difference(path, f"changed: {files[path].size} bytes, not {wanted[path].size}"))
    return found


def differences(
    blobs: Blobs, directory: str, manifest: Manifest, sha256: Callable[[Listed], str | None]
) -> list[Difference]:
    """How an artifact's files differ from its manifest: missing, extra, changed.

    Args:
        blobs: Where they are.
        directory: The artifact's directory there.
        manifest: What they should be.
        sha256: How the bytes of each are known: `blobs.sha256` or `blobs.stated_sha256`.
    """
    files = files_of(blobs, directory)
    found = listing_differences(manifest, files)
    named = {difference.path for difference in found}

    def difference(file: ManifestFile) -> Difference | None:
        try:
            actual = sha256(files[file.path])
        except Changed:
            return Difference(file.path, "changed while it was read")
        except IntegrityError as error:
            return Difference(file.path, error.message)
        if actual is None:
            return Difference(file.path, "changed: no store wrote it")
        if actual != file.sha256:
            return Difference(file.path, f"changed: SHA-256 is {actual}, not {file.sha256}")
        return None

    rest = sorted((file for file in manifest.files if file.path not in named), key=lambda file: -file.size)
    compared = in_parallel(difference, rest)
    return found + sorted((one for one in compared if one), key=lambda one: one.path)
