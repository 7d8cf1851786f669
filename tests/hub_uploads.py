"""What the demo's hub takes: new repositories, large files by the LFS protocol, and commits.

Large files go to the addresses that the batch request gives, without the token, as the hub's storage has it. They are
kept by their content and belong to no commit until one names them. A commit is one request with all of its changes, and
moves the branch at once; one whose parent is not the branch's newest is refused. Whoever creates a repository may push
to it, and nobody else.

The protocol: https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md; the rest as `huggingface_hub` speaks it.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from aiohttp import web
from hub_access import HubAccessRules, restrict, rules_of, token_of

from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.base.durable import replace_durably
from llm_pipeline.demo.hub import (
    ROOT,
    HubEntry,
    HubRepository,
    Refused,
    commit_entries,
    commit_of,
    is_large,
    large_entry,
    repository_of,
)
from llm_pipeline.hub.git_ids import blob_id

LONGEST_COMMIT_BYTES = 256 * 1024 * 1024
_ATTRIBUTES = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"
_MODEL = "/api/models/{organisation}/{name}"
_OBJECTS = "/{organisation}/{name}.git/info/lfs/objects"


def add_uploads(application: web.Application) -> None:
    """Let an application take repositories, files and commits."""
    application.add_routes(
        [
            web.get("/api/whoami-v2", _whoami),
            web.post("/api/repos/create", _create),
            web.post("/api/validate-yaml", _validate_card),
            web.post(f"{_MODEL}/preupload/{{revision}}", _preupload),
            web.post(f"{_MODEL}/commit/{{revision}}", _commit),
            web.post(f"{_OBJECTS}/batch", _batch),
            web.post(f"{_OBJECTS}/verify", _verify),
            web.put("/storage/{repository:.+}/{oid}", _store),
        ]
    )


def _writable(request: web.Request) -> HubRepository:
    """The repository that a request names, if its sender may push to it."""
    repository = repository_of(request)
    if token_of(request) is None:
        raise Refused(401, "", "Invalid username or password.")
    if not rules_of(repository).admits_writing(token_of(request)):
        raise Refused(403, "", "You don't have the rights to push to this repository.")
    return repository


async def _whoami(request: web.Request) -> web.Response:
    if token_of(request) is None:
        raise Refused(401, "", "Invalid credentials in Authorization header")
    return web.json_response({"type": "user", "name": "local", "orgs": [], "auth": {"type": "access_token"}})


async def _create(request: web.Request) -> web.Response:
    asked, token = await request.json(), token_of(request)
    if token is None:
        raise Refused(401, "", "Invalid username or password.")
    model_id = f"{asked['organization']}/{asked['name']}"
    answer = {"url": str(request.url.origin() / model_id), "name": model_id}
    if HubRepository.find(request.app[ROOT], model_id) is not None:
        return web.json_response({"error": "You already created this model repo", **answer}, status=409)
    private = asked.get("visibility", "private" if asked.get("private") else "public") == "private"
    rules = HubAccessRules(private=private, writers=(sha256_bytes(token.encode()),))
    restrict(request.app[ROOT], model_id, rules)
    directory = request.app[ROOT] / model_id
    commit_entries(directory, [_small_entry(directory, ".gitattributes", _ATTRIBUTES)], "initial commit")
    return web.json_response(answer)


async def _validate_card(_request: web.Request) -> web.Response:
    return web.json_response({"errors": [], "warnings": []})


async def _preupload(request: web.Request) -> web.Response:
    known = {entry.path: entry for entry in commit_of(request, _writable(request)).files}
    files = []
    for asked in (await request.json())["files"]:
        path, entry = asked["path"], known.get(asked["path"])
        mode = "lfs" if is_large(path, int(asked["size"])) else "regular"
        found = {} if entry is None else {"oid": entry.sha256 if entry.large else entry.oid}
        files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, **found})
    return web.json_response({"files": files})


async def _batch(request: web.Request) -> web.Response:
    """Where each object is to be sent; nothing of that for one that is there."""
    repository, origin = _writable(request), request.url.origin()
    objects = []
    for asked in (await request.json())["objects"]:
        address = f"{origin}/storage/{repository.model_id}/{asked['oid']}"
        verify = f"{origin}/{repository.model_id}.git/info/lfs/objects/verify"
        actions = {"upload": {"href": address}, "verify": {"href": verify}}
        there = (repository.directory / "blobs" / asked["oid"]).exists()
        objects.append({"oid": asked["oid"], "size": asked["size"]} | ({} if there else {"actions": actions}))
    answer = {"transfer": "basic", "objects": objects}
    return web.json_response(answer, content_type="application/vnd.git-lfs+json")


async def _store(request: web.Request) -> web.Response:
    data, oid = await request.read(), request.match_info["oid"]
    if sha256_bytes(data) != oid:
        raise Refused(400, "", "The content is not what was announced")
    kept = request.app[ROOT] / request.match_info["repository"] / "blobs" / oid
    kept.parent.mkdir(exist_ok=True)
    replace_durably(kept, data)
    return web.Response()


async def _verify(request: web.Request) -> web.Response:
    asked = await request.json()
    blob = _writable(request).directory / "blobs" / asked["oid"]
    if not blob.is_file() or blob.stat().st_size != asked["size"]:
        raise Refused(404, "", "The object is not there")
    return web.json_response({})


async def _commit(request: web.Request) -> web.Response:
    repository = _writable(request)
    lines = [json.loads(line) for line in (await request.text()).splitlines() if line]
    header = next(line["value"] for line in lines if line["key"] == "header")
    head = commit_of(request, repository)
    if header.get("parentCommit") not in (None, head.id):
        raise Refused(412, "", "A commit has happened since. Please refresh and try again.")
    files = {entry.path: entry for entry in head.files}
    for line in lines:
        _apply(repository, files, line["key"], line["value"])
    commit = commit_entries(repository.directory, files.values(), header["summary"], request.match_info["revision"])
    url = str(request.url.origin() / repository.model_id / "commit" / commit)
    return web.json_response({"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""})


def _small_entry(repository: Path, path: str, data: bytes) -> HubEntry:
    """A file that is kept as it is; its blob is written."""
    digest = sha256_bytes(data)
    blob = repository / "blobs" / digest
    blob.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(blob, data)
    return HubEntry(path=path, size=len(data), sha256=digest, oid=blob_id(data), large=False)


def _apply(repository: HubRepository, files: dict[str, HubEntry], key: str, value: dict[str, Any]) -> None:
    """One line of a commit."""
    match key:
        case "file":
            data = base64.b64decode(value["content"])
            files[value["path"]] = _small_entry(repository.directory, value["path"], data)
        case "lfsFile":
            blob = repository.directory / "blobs" / value["oid"]
            if not blob.is_file():
                raise Refused(400, "", f"The large file of {value['path']} was never uploaded")
            files[value["path"]] = large_entry(value["path"], value["oid"], blob.stat().st_size)
        case "deletedFile":
            if files.pop(value["path"], None) is None:
                raise Refused(404, "EntryNotFound", "A file with this name doesn't exist")
