"""Model repositories as plain directories: what the demo's hub serves.

`<root>/<organisation>/<name>/` holds `blobs/<sha256>`, `commits/<commit>.json`, `refs/<branch>` and, for a
repository that is not public, `access.json`. Blob ids are Git's own; a commit's id covers its tree and nothing
else, so that the same content is always the same commit.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Literal

from llm_pipeline.base.digest import sha256_bytes, sha256_file
from llm_pipeline.base.durable import replace_durably
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import Frozen
from llm_pipeline.hub.git_ids import blob_id, commit_id, lfs_pointer

_LARGE_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".model", ".zip", ".gz"}
_LARGE_BYTES = 10 * 1024 * 1024
_IGNORED_DIRECTORIES = {".git", ".cache"}


class HubEntry(Frozen):
    """One file of a commit.

    Attributes:
        path: Path in the repository, with `/`.
        size: Bytes.
        sha256: Of the content; also the name of the blob's file.
        oid: Git's blob id: of the content, or of the LFS pointer of a large file.
        large: Whether the hub keeps the file in LFS.
        pointer_size: Bytes of the LFS pointer; 0 for a small file.
    """

    path: str
    size: int
    sha256: str
    oid: str
    large: bool
    pointer_size: int = 0


class HubCommit(Frozen):
    """A published state of a repository."""

    id: str
    message: str
    created_at: datetime
    files: tuple[HubEntry, ...]


class HubAccessRules(Frozen):
    """Who may read and write a repository (`access.json`).

    Attributes:
        private: Only `readers` can see that it exists.
        gated: All can list its files, only `readers` can read them.
        disabled: Every request is refused.
        renamed_to: Its new name, to which every request is redirected.
        readers: SHA-256 of the tokens that may read; the tokens themselves are not kept.
        writers: SHA-256 of the tokens that may push.
    """

    private: bool = False
    gated: Literal["auto", "manual"] | None = None
    disabled: bool = False
    renamed_to: str | None = None
    readers: tuple[str, ...] = ()
    writers: tuple[str, ...] = ()

    def admits(self, token: str | None) -> bool:
        """Whether the token is one of the readers', or of the writers'."""
        return token is not None and sha256_bytes(token.encode()) in {*self.readers, *self.writers}

    def admits_writing(self, token: str | None) -> bool:
        """Whether the token is one of the writers'."""
        return token is not None and sha256_bytes(token.encode()) in self.writers


def publish_revision(root: Path, model_id: str, directory: Path, message: str, *, branch: str = "main") -> str:
    """Make a directory's files a commit of a model repository and move the branch to it.

    Publishing the same content again gives the same commit and changes nothing.

    Args:
        root: Directory of all repositories.
        model_id: `organisation/name`.
        directory: The files; symbolic links and `.git` are left out.
        message: The commit's message.
        branch: The branch to move.

    Returns:
        The commit's id, 40 hex digits.

    Raises:
        ConfigError: The directory holds no file.
    """
    repository = root / model_id
    paths = sorted(_files_of(directory))
    if not paths:
        raise ConfigError("nothing to publish: the directory holds no file", where=str(directory))
    return commit_entries(repository, [_add_blob(repository, directory, path) for path in paths], message, branch)


def commit_entries(repository: Path, entries: Iterable[HubEntry], message: str, branch: str = "main") -> str:
    """Make files whose blobs are there a commit of a repository's directory, and move the branch to it."""
    files = tuple(sorted(entries, key=lambda entry: entry.path))
    commit = commit_id({entry.path: entry.oid for entry in files})
    record = repository / "commits" / f"{commit}.json"
    if not record.exists():
        described = HubCommit(id=commit, message=message, created_at=datetime.now(UTC), files=files)
        _write(record, described.model_dump_json(indent=1))
    _write(repository / "refs" / branch, commit)
    return commit


def is_large(path: str, size: int) -> bool:
    """Whether the hub keeps a file in LFS."""
    return PurePosixPath(path).suffix.lower() in _LARGE_SUFFIXES or size >= _LARGE_BYTES


def large_entry(path: str, sha256: str, size: int) -> HubEntry:
    """A file in LFS."""
    pointer = lfs_pointer(sha256, size)
    return HubEntry(path=path, size=size, sha256=sha256, oid=blob_id(pointer), large=True, pointer_size=len(pointer))


def restrict(root: Path, model_id: str, rules: HubAccessRules) -> None:
    """Set who may read a repository."""
    _write(root / model_id / "access.json", rules.model_dump_json(indent=1))


def _files_of(directory: Path) -> Iterable[Path]:
    for path in directory.rglob("*"):
        if path.is_file() and not path.is_symlink():
            relative = path.relative_to(directory)
            if not _IGNORED_DIRECTORIES.intersection(relative.parts):
                yield relative


def _add_blob(repository: Path, directory: Path, relative: Path) -> HubEntry:
    source = directory / relative
    digest, size = sha256_file(source), source.stat().st_size
    blob = repository / "blobs" / digest
    if not blob.exists():
        blob.parent.mkdir(parents=True, exist_ok=True)
        temporary = blob.with_name(f".{digest}.{os.getpid()}")
        shutil.copyfile(source, temporary)
        temporary.replace(blob)
    path = relative.as_posix()
    if is_large(path, size):
        return large_entry(path, digest, size)
    return HubEntry(path=path, size=size, sha256=digest, oid=blob_id(source.read_bytes()), large=False)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(path, text.encode())


class HubRepository:
    """One repository, read from its directory at every call."""

    def __init__(self, directory: Path, model_id: str) -> None:
        self.directory = directory
        self.model_id = model_id

    @classmethod
    def find(cls, root: Path, model_id: str) -> HubRepository | None:
        """The repository of that id, or None."""
        directory = root / model_id
        inside = directory.resolve().is_relative_to(root.resolve())
        return cls(directory, model_id) if inside and (directory / "refs").is_dir() else None

    @property
    def rules(self) -> HubAccessRules:
        """The rules of `access.json`; without the file, all may read it."""
        file = self.directory / "access.json"
        return HubAccessRules.model_validate_json(file.read_text()) if file.exists() else HubAccessRules()

    def branches(self) -> dict[str, str]:
        """Id of the newest commit by branch name."""
        refs = self.directory / "refs"
        return {
            path.relative_to(refs).as_posix(): path.read_text().strip()
            for path in sorted(refs.rglob("*"))
            if path.is_file() and path.suffix != ".partial"  # one that is being written
        }

    def commit(self, revision: str) -> HubCommit | None:
        """The commit that a branch or a full commit id names, or None."""
        known = {path.stem: path for path in (self.directory / "commits").glob("*.json")}
        record = known.get(self.branches().get(revision, revision))
        return None if record is None else HubCommit.model_validate_json(record.read_text())

    def blob(self, entry: HubEntry) -> Path:
        """The file that holds an entry's content."""
        return self.directory / "blobs" / entry.sha256
