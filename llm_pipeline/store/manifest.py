"""Manifests: what an artifact holds, file by file, where it came from, and the digest that names it.

Stored as an in-toto statement (`_MANIFEST.json`), beside an optional signature (`_SIGNATURE.json`) and the
completion marker (`_COMPLETE.json`), which is written last and seals both.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from llm_pipeline.digest import sha256_bytes, sha256_file, sha256_json
from llm_pipeline.errors import IntegrityError
from llm_pipeline.stages.contract import ArtifactRef, Frozen
from llm_pipeline.store.artifact_store import Difference
from llm_pipeline.store.provenance import PREDICATE_TYPE, Provenance, from_predicate, to_predicate

MANIFEST_FILE = "_MANIFEST.json"
SIGNATURE_FILE = "_SIGNATURE.json"
COMPLETE_FILE = "_COMPLETE.json"
MARKERS = frozenset({MANIFEST_FILE, SIGNATURE_FILE, COMPLETE_FILE})
"""Files of an artifact that are the store's own, not its maker's."""

_STATEMENT_TYPE = "https://in-toto.io/Statement/v1"


class ManifestFile(Frozen):
    """One file: POSIX path below the artifact, size in bytes, SHA-256 in hex."""

    path: str
    size: int
    sha256: str


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
        """The artifact's name."""
        return ArtifactRef(kind=self.kind, digest=self.digest)

    @property
    def size(self) -> int:
        """Bytes of all files."""
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
        """Read a statement back.

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
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # pydantic's errors are ValueErrors
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


def _parsed(data: bytes, ref: ArtifactRef) -> Manifest | Difference:
    try:
        manifest = Manifest.from_json(data)
    except IntegrityError as error:
        return Difference(MANIFEST_FILE, error.message)
    return manifest if manifest.ref == ref else Difference(MANIFEST_FILE, f"is of {manifest.ref}, not {ref}")


def inventory(directory: Path) -> tuple[ManifestFile, ...]:
    """Hash every regular file below a directory, on all cores.

    Raises:
        IntegrityError: It holds a symbolic link, a device, or no file at all.
    """
    paths = _regular_files(directory)
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # hashing releases the interpreter's lock
        files = list(pool.map(lambda path: _inventoried(directory, path), paths))
    if not files:
        raise IntegrityError("nothing to publish: the directory holds no file", where=str(directory))
    return tuple(sorted(files, key=lambda file: file.path))


def _inventoried(directory: Path, path: Path) -> ManifestFile:
    relative = path.relative_to(directory).as_posix()
    return ManifestFile(path=relative, size=path.stat().st_size, sha256=sha256_file(path))


def _regular_files(directory: Path) -> Sequence[Path]:
    found = []
    for root, directories, names in os.walk(directory):
        for name in directories + names:
            path = Path(root) / name
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode) or (name in MARKERS and Path(root) == directory):
                continue
            if not stat.S_ISREG(mode):
                raise IntegrityError("an artifact holds regular files only", where=str(path))
            found.append(path)
    return found


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
