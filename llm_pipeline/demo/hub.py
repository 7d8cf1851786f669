"""A local server that speaks the Hugging Face Hub API, for models kept as plain directories.

    python -m llm_pipeline.demo.hub --root DIR --port 8080
    HF_ENDPOINT=http://127.0.0.1:8080 hf download organisation/name

It speaks the parts of the API that reading a model needs: model information, revisions, trees and file downloads with
ranges, entity tags and the hub's own error codes; and of those, information and files of data sets. All may read all.
`publish_revision` fills it: `<root>/<organisation>/<name>/` holds `blobs/<sha256>`, `commits/<commit>.json` and
`refs/<branch>`. Blob ids are Git's own; a commit's id covers its tree and nothing else, so that the same content is
always the same commit.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from aiohttp import web

from llm_pipeline.base.digest import sha256_file
from llm_pipeline.base.durable import replace_durably
from llm_pipeline.base.entry import ArgumentParser, entry_point
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import Frozen
from llm_pipeline.hub.git_ids import blob_id, content_commit, lfs_pointer

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
    """

    path: str
    size: int
    sha256: str
    oid: str
    large: bool


class HubCommit(Frozen):
    """A published state of a repository."""

    id: str
    message: str
    files: tuple[HubEntry, ...]


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
    repository, entries = root / model_id, []
    for source in sorted(directory.rglob("*")):
        relative = source.relative_to(directory)
        if not source.is_file() or source.is_symlink() or _IGNORED_DIRECTORIES.intersection(relative.parts):
            continue
        path, digest, size = relative.as_posix(), sha256_file(source), source.stat().st_size
        if not (blob := repository / "blobs" / digest).exists():
            blob.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, blob.with_name(f".{digest}.{os.getpid()}")).replace(blob)
        if is_large(path, size):
            entries.append(large_entry(path, digest, size))
        else:
            entries.append(HubEntry(path=path, size=size, sha256=digest, oid=blob_id(source.read_bytes()), large=False))
    if not entries:
        raise ConfigError("nothing to publish: the directory holds no file", where=str(directory))
    return commit_entries(repository, entries, message, branch)


def commit_entries(repository: Path, entries: Iterable[HubEntry], message: str, branch: str = "main") -> str:
    """Make files whose blobs are there a commit of a repository's directory, and move the branch to it."""
    files = tuple(sorted(entries, key=lambda entry: entry.path))
    commit = content_commit({entry.path: entry.oid for entry in files})
    record = repository / "commits" / f"{commit}.json"
    if not record.exists():
        _write(record, HubCommit(id=commit, message=message, files=files).model_dump_json(indent=1))
    _write(repository / "refs" / branch, commit)
    return commit


def is_large(path: str, size: int) -> bool:
    """Whether the hub keeps a file in LFS."""
    return PurePosixPath(path).suffix.lower() in _LARGE_SUFFIXES or size >= _LARGE_BYTES


def large_entry(path: str, sha256: str, size: int) -> HubEntry:
    """A file in LFS."""
    return HubEntry(path=path, size=size, sha256=sha256, oid=blob_id(lfs_pointer(sha256, size)), large=True)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(path, text.encode())


class HubRepository:
    """One repository, read from its directory at every call."""

    def __init__(self, directory: Path, model_id: str) -> None:
        self.directory, self.model_id = directory, model_id

    @classmethod
    def find(cls, root: Path, model_id: str) -> HubRepository | None:
        """The repository of that id, or None."""
        directory = root / model_id
        inside = directory.resolve().is_relative_to(root.resolve())
        return cls(directory, model_id) if inside and (directory / "refs").is_dir() else None

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


ROOT: web.AppKey[Path] = web.AppKey("root", Path)
DATASETS = "datasets"
"""Data sets are in this directory of the root, as models are in the root."""
ENTITY_TAG: web.RequestKey[str] = web.RequestKey("entity_tag", str)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_REPOSITORY = "/api/{kind:models|datasets}/{organisation}/{name}"
_FILE = "/{organisation}/{name}/resolve/{revision}/{path:.+}"


def create_application(root: Path, *middlewares: Any, longest_bytes: int = 2**20) -> web.Application:
    """The server of all repositories below a directory, as an aiohttp application; `middlewares` see requests last."""
    application = web.Application(middlewares=middlewares, client_max_size=longest_bytes)
    application[ROOT] = root
    application.on_response_prepare.append(_set_entity_tag)
    application.add_routes([
        web.get(_REPOSITORY, _information),
        web.get(_REPOSITORY + "/revision/{revision}", _information),
        web.get(_REPOSITORY + "/tree/{revision}", _tree),
        web.get(_FILE, _file),  # answers HEAD too
        web.get("/{kind:datasets}" + _FILE, _file),
    ])  # fmt: skip
    return application


class Refused(web.HTTPException):
    """An answer in the hub's own form: a status, an error code and a message."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        self.status_code = status
        headers |= {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}
        super().__init__(headers=headers, text=json.dumps({"error": message}), content_type="application/json")


def repository_of(request: web.Request) -> HubRepository:
    """The repository that a request names."""
    model_id = f"{request.match_info['organisation']}/{request.match_info['name']}"
    is_dataset = request.match_info.get("kind") == DATASETS
    repository = HubRepository.find(request.app[ROOT] / DATASETS if is_dataset else request.app[ROOT], model_id)
    if repository is None:
        raise Refused(404, "RepoNotFound", "Repository not found")
    return repository


def commit_of(request: web.Request, repository: HubRepository) -> HubCommit:
    """The commit that a request names; the newest of `main` where it names none."""
    revision = request.match_info.get("revision", "main")
    commit = repository.commit(revision)
    if commit is None:
        raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    return commit


async def _information(request: web.Request) -> web.Response:
    repository, blobs = repository_of(request), request.query.get("blobs")
    commit = commit_of(request, repository)
    siblings: list[dict[str, Any]] = [
        {"rfilename": one.path, **({"blobId": one.oid, "size": one.size, **_lfs(one, "sha256")} if blobs else {})}
        for one in commit.files
    ]
    card = _card(repository, commit)
    answer = {
        "id": repository.model_id,
        "sha": commit.id,
        "private": False,
        "gated": False,
        "tags": [f"license:{card['license']}"] if isinstance(card.get("license"), str) else [],
        "cardData": card,
        "siblings": siblings,
    }
    return web.json_response(answer)


def _lfs(entry: HubEntry, digest_key: str) -> dict[str, Any]:
    pointer_size = len(lfs_pointer(entry.sha256, entry.size))
    return {"lfs": {digest_key: entry.sha256, "size": entry.size, "pointerSize": pointer_size}} if entry.large else {}


def _card(repository: HubRepository, commit: HubCommit) -> dict[str, Any]:
    """The front matter of README.md, as the hub reads it."""
    readme = next((entry for entry in commit.files if entry.path == "README.md"), None)
    text = repository.blob(readme).read_text(errors="replace") if readme else ""
    match = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
    card = yaml.safe_load(match.group(1)) if match else None
    return card if isinstance(card, dict) else {}


async def _tree(request: web.Request) -> web.Response:
    """All files, in one page: the client asks for no more than the whole."""
    files = commit_of(request, repository_of(request)).files
    rows = [{"type": "file", "oid": one.oid, "size": one.size, "path": one.path, **_lfs(one, "oid")} for one in files]
    return web.json_response(rows)


async def _file(request: web.Request) -> web.StreamResponse:
    repository = repository_of(request)
    commit = commit_of(request, repository)
    entry = next((entry for entry in commit.files if entry.path == request.match_info["path"]), None)
    if entry is None:
        raise Refused(404, "EntryNotFound", "Entry not found")
    headers = {"X-Repo-Commit": commit.id, "Content-Type": "application/octet-stream"}
    if entry.large:
        headers |= {"X-Linked-ETag": f'"{entry.sha256}"', "X-Linked-Size": str(entry.size)}
    request[ENTITY_TAG] = entry.sha256 if entry.large else entry.oid
    return web.FileResponse(repository.blob(entry), headers=headers)


async def _set_entity_tag(request: web.Request, response: web.StreamResponse) -> None:
    """Replace the entity tag that aiohttp derives from the file system by the hub's."""
    if ENTITY_TAG in request:
        response.headers["ETag"] = f'"{request[ENTITY_TAG]}"'


@entry_point
def main(arguments: Sequence[str] | None = None) -> None:
    """Serve a directory of repositories until stopped.

    Raises:
        ConfigError: The root is not a directory.
    """
    parser = ArgumentParser(prog="python -m llm_pipeline.demo.hub", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="directory of all repositories")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args(arguments)
    if not options.root.is_dir():
        raise ConfigError("the root is not a directory", where=str(options.root))
    web.run_app(create_application(options.root), host="127.0.0.1", port=options.port, print=None)


if __name__ == "__main__":
    raise SystemExit(main())
