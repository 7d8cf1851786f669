"""Manifests: what an artifact holds, file by file, where it came from, and the digest that names it.

Stored as an in-toto statement (`_MANIFEST.json`), beside an optional signature (`_SIGNATURE.json`) and the
completion marker (`_COMPLETE.json`), which is written last and seals both.
"""

from __future__ import annotations

import json
import os
import stat
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, ValidationError, field_validator

from llm_pipeline.base.digest import FileDigest, digest_file, sha256_bytes, sha256_json
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.records import ArtifactRef, Frozen
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
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:  # pydantic's errors are ValueErrors
            raise IntegrityError(f"not a manifest: {type(error).__name__}: {error}") from error
        if form != (_STATEMENT_TYPE, PREDICATE_TYPE):
            raise IntegrityError(f"not a manifest: a statement of the form {form}")
        return cls(kind=kind, files=files, provenance=made)


class Seal(Frozen):
    """The completion marker: what the artifact was when it was published."""

    manifest_sha256: str
    signature_sha256: str | None = None


class Sealed(Frozen):
    """The store's own files of one artifact, as found; None where there is none."""

    marker: bytes | None
    manifest: bytes | None
    signature: bytes | None = None

    def open(self, ref: ArtifactRef) -> Manifest | Difference:
        """The manifest, or what is wrong with these files."""
        if self.marker is None or self.manifest is None:
            return Difference(COMPLETE_FILE if self.marker is None else MANIFEST_FILE, "missing")
        try:
            seal = Seal.model_validate_json(self.marker)
        except ValidationError:
            return Difference(COMPLETE_FILE, "not a completion marker")
        return self._broken_seal(seal) or _parsed(self.manifest, ref)

    def _broken_seal(self, seal: Seal) -> Difference | None:
        for name, content, sealed in (
            (MANIFEST_FILE, self.manifest, seal.manifest_sha256),
            (SIGNATURE_FILE, self.signature, seal.signature_sha256),
        ):
            if sealed != (None if content is None else sha256_bytes(content)):
                return Difference(name, "added, removed or changed since the artifact was completed")
        return None


def not_whole(ref: ArtifactRef, found: Sequence[Difference], where: str) -> IntegrityError:
    """The error for an artifact that differs from its manifest, its seal or its signature."""
    listing = "; ".join(f"{difference.path}: {difference.problem}" for difference in found[:5])
    return IntegrityError(
        f"artifact {ref} is not whole: {listing}",
        where=where,
        hint="run the release again: the stage that makes it will replace it",
    )


def _parsed(data: bytes, ref: ArtifactRef) -> Manifest | Difference:
    try:
        manifest = Manifest.from_json(data)
    except IntegrityError as error:
        return Difference(MANIFEST_FILE, error.message)
    return manifest if manifest.ref == ref else Difference(MANIFEST_FILE, f"is of {manifest.ref}, not {ref}")


class FileState(NamedTuple):
    """What changes when a file does: size in bytes, time of the last change, and inode."""

    size: int
    changed_ns: int
    inode: int


def regular_files(directory: Path) -> dict[str, FileState]:
    """The files of an artifact below its directory, by POSIX path; the store's own are left out.

    Raises:
        IntegrityError: It holds a symbolic link, a device, or a name that is not UTF-8.
    """
    found: dict[str, FileState] = {}
    _list_files(str(directory), "", found)
    return {path: state for path, state in found.items() if path not in MARKERS}


def _list_files(directory: str, prefix: str, found: dict[str, FileState]) -> None:
    with os.scandir(directory) as entries:
        for entry in entries:
            path = prefix + entry.name
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                _list_files(entry.path, f"{path}/", found)
            elif not stat.S_ISREG(status.st_mode):
                raise IntegrityError("an artifact holds regular files only", where=entry.path)
            elif not _is_utf8(path):
                raise IntegrityError("a file's name is not UTF-8", where=ascii(entry.path))
            else:
                found[path] = FileState(status.st_size, status.st_mtime_ns, status.st_ino)


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:  # the system's bytes that are no text come as lone surrogates
        return False
    return True


def inventory(directory: Path) -> tuple[ManifestFile, ...]:
    """Hash every regular file below a directory, on all cores.

    Raises:
        IntegrityError: It holds a symbolic link, a device, or no file at all.
    """
    return inventory_of(directory, lambda path: digest_file(directory / path))


def inventory_of(directory: Path, digest: Callable[[str], FileDigest]) -> tuple[ManifestFile, ...]:
    """As `inventory`, with the digests that a function gives for each path; it may copy the file meanwhile.

    Raises:
        IntegrityError: As `inventory`, or a file was added, removed or changed meanwhile.
    """
    before = regular_files(directory)
    if not before:
        raise IntegrityError("nothing to publish: the directory holds no file", where=str(directory))
    try:
        digests = _on_all_cores(digest, _largest_first(before))
        after = regular_files(directory)
    except FileNotFoundError as error:
        raise IntegrityError("a file was removed meanwhile", where=str(error.filename)) from error
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path) or before[path].size != digests[path].size:
            raise IntegrityError("a file was added, removed or changed meanwhile", where=str(directory / path))
    return tuple(ManifestFile(path=path, size=made.size, sha256=made.sha256) for path, made in sorted(digests.items()))


def _largest_first(files: Mapping[str, FileState]) -> Collection[str]:
    return sorted(files, key=lambda path: files[path].size, reverse=True)


def _on_all_cores(digest: Callable[[str], FileDigest], paths: Collection[str]) -> dict[str, FileDigest]:
    """Digest files in threads, as that frees the interpreter; ends at the first error."""
    waiting, done = deque(paths), dict[str, FileDigest]()

    def work() -> None:
        try:
            while waiting:
                path = waiting.popleft()
                done[path] = digest(path)
        except IndexError:  # another thread took the last one
            return
        except BaseException:
            waiting.clear()
            raise

    threads = os.cpu_count() or 1
    with ThreadPoolExecutor(threads) as pool:
        for running in [pool.submit(work) for _ in range(threads)]:
            running.result()
    return done


def differences(manifest: Manifest, directory: Path) -> list[Difference]:
    """How a directory differs from its manifest: missing, extra, changed.

    Raises:
        OSError: It cannot be read.
    """
    wanted = {file.path: file for file in manifest.files}
    try:
        found = regular_files(directory)
        same_size = {path: state for path, state in found.items() if path in wanted and state.size == wanted[path].size}
        digests = _on_all_cores(lambda path: digest_file(directory / path), _largest_first(same_size))
    except IntegrityError as error:
        return [Difference(error.where, error.message)]
    except FileNotFoundError as error:
        return [Difference(Path(error.filename).name, "missing: it was removed just now")]
    result = [Difference(path, "missing") for path in sorted(wanted.keys() - found.keys())]
    result += [Difference(path, "not in the manifest: an extra file") for path in sorted(found.keys() - wanted.keys())]
    for path in sorted(wanted.keys() & found.keys()):
        size, sha256 = wanted[path].size, wanted[path].sha256
        if path not in digests:
            result.append(Difference(path, f"changed: {found[path].size} bytes, not {size}"))
        elif digests[path].sha256 != sha256:
            result.append(Difference(path, f"changed: SHA-256 is {digests[path].sha256}, not {sha256}"))
    return result
