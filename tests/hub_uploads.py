"""What the demo's hub takes: new repositories, large files by the LFS protocol, and commits.

Large files go to addresses that the batch request gives, without the token, as the hub's storage has it; in parts where
they have more than `part_bytes`. They are kept by their content and belong to no commit until one names them. A commit
is one request with all of its changes, and moves the branch at once; one whose parent is not the branch's newest is
refused. Whoever creates a repository may push to it, and nobody else.

The protocol: https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md; the rest as `huggingface_hub` speaks it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
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
_PART_BYTES: web.AppKey[int] = web.AppKey("part_bytes", int)
_TICKETS: web.AppKey[dict[str, _Ticket]] = web.AppKey("tickets", dict)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ATTRIBUTES = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"
_OBJECTS = "/{organisation}/{name}.git/info/lfs/objects"


@dataclass(frozen=True)
class _Ticket:
    """What one address of the storage takes: a whole object, or a part of one."""

    directory: Path
    oid: str
    size: int
    part: int | None = None

    @property
    def parts(self) -> Path:
        return self.directory / "parts" / self.oid


def add_uploads(application: web.Application, part_bytes: int) -> None:
    """Let an application take repositories, files and commits."""
    application[_PART_BYTES] = part_bytes
    application[_TICKETS] = {}
    application.add_routes(
        [
            web.get("/api/whoami-v2", _whoami),
            web.post("/api/repos/create", _create),
            web.post("/api/validate-yaml", _validate_card),
            web.post("/api/models/{organisation}/{name}/preupload/{revision}", _preupload),
            web.post("/api/models/{organisation}/{name}/commit/{revision}", _commit),
            web.post(f"{_OBJECTS}/batch", _batch),
            web.post(f"{_OBJECTS}/verify", _verify),
            web.put("/storage/{ticket}", _store),
            web.post("/storage/{ticket}", _complete),
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
    model_id = f"{asked.get('organization') or 'local'}/{asked.get('name')}"
    if asked.get("type", "model") != "model" or not all(map(_NAME.fullmatch, model_id.split("/"))):
        raise Refused(400, "", f"{model_id} is not the name of a model's repository")
    answer = {"url": str(request.url.origin() / model_id), "name": model_id}
    known = HubRepository.find(request.app[ROOT], model_id)
    if known is not None:
        return web.json_response({"error": "You already created this model repo", **answer}, status=409)
    private = asked.get("visibility", "private" if asked.get("private") else "public") == "private"
    rules = HubAccessRules(private=private, writers=(sha256_bytes(token.encode()),))
    restrict(request.app[ROOT], model_id, rules)
    directory = request.app[ROOT] / model_id
    commit_entries(directory, [_small_entry(directory, ".gitattributes", _ATTRIBUTES)], "initial commit")
    return web.json_response(answer)


async def _validate_card(request: web.Request) -> web.Response:
    content = str((await request.json()).get("content", ""))
    match = re.match(r"---\n(.*?)\n---", content, re.DOTALL)
    try:
        card = yaml.safe_load(match.group(1)) if match else None
    except yaml.YAMLError as error:
        return _invalid_card(str(error))
    if not isinstance(card, dict):
        return web.json_response({"errors": [], "warnings": [{"message": "empty or missing yaml metadata"}]})
    if card.get("license") == "other" and not card.get("license_name"):
        return _invalid_card('"license_name" is required')
    return web.json_response({"errors": [], "warnings": []})


def _invalid_card(message: str) -> web.Response:
    return web.json_response({"error": message, "errors": [{"message": message}], "warnings": []}, status=400)


async def _preupload(request: web.Request) -> web.Response:
    repository = _writable(request)
    known = {entry.path: entry for entry in commit_of(request, repository).files}
    files = []
    for asked in (await request.json())["files"]:
        path, entry = asked["path"], known.get(asked["path"])
        mode = "lfs" if is_large(path, int(asked["size"])) else "regular"
        found = {} if entry is None else {"oid": entry.sha256 if entry.large else entry.oid}
        files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, **found})
    return web.json_response({"files": files})


async def _batch(request: web.Request) -> web.Response:
    repository = _writable(request)
    asked, part_bytes = await request.json(), request.app[_PART_BYTES]
    in_parts = "multipart" in asked["transfers"] and any(int(one["size"]) > part_bytes for one in asked["objects"])
    objects = [_instructions(request, repository, one) for one in asked["objects"]]
    answer = {"transfer": "multipart" if in_parts else "basic", "objects": objects}
    return web.json_response(answer, content_type="application/vnd.git-lfs+json")


def _instructions(request: web.Request, repository: HubRepository, asked: dict[str, Any]) -> dict[str, Any]:
    """Where an object is to be sent; nothing of that for one that is there."""
    oid, size, part_bytes = str(asked["oid"]), int(asked["size"]), request.app[_PART_BYTES]
    if not _SHA256.fullmatch(oid):
        return {"oid": oid, "size": size, "error": {"code": 422, "message": "not the SHA-256 of an object"}}
    if (repository.directory / "blobs" / oid).exists():
        return {"oid": oid, "size": size}
    parts = -(-size // part_bytes) if size > part_bytes else 0
    whole = _Ticket(repository.directory, oid, size)
    upload: dict[str, Any] = {"href": _address(request, whole)}
    if parts:
        sizes = [min(part_bytes, size - start) for start in range(0, size, part_bytes)]
        tickets = [_Ticket(repository.directory, oid, of_part, number) for number, of_part in enumerate(sizes, 1)]
        addresses = {str(ticket.part): _address(request, ticket) for ticket in tickets}
        upload["header"] = {"chunk_size": str(part_bytes), **addresses}
    origin, model_id = request.url.origin(), repository.model_id
    verify = {"href": f"{origin}/{model_id}.git/info/lfs/objects/verify"}
    return {"oid": oid, "size": size, "actions": {"upload": upload, "verify": verify}}


def _address(request: web.Request, ticket: _Ticket) -> str:
    """An address that whoever knows it may send to."""
    name = secrets.token_urlsafe(24)
    request.app[_TICKETS][name] = ticket
    return str(request.url.origin() / "storage" / name)


def _ticket(request: web.Request) -> _Ticket:
    ticket = request.app[_TICKETS].get(request.match_info["ticket"])
    if ticket is None:
        raise Refused(403, "", "Request has expired")
    return ticket


async def _store(request: web.Request) -> web.Response:
    """Take an object, or a part of one: it is there when all of it came."""
    ticket = _ticket(request)
    kept = ticket.directory / "blobs" / ticket.oid if ticket.part is None else ticket.parts / str(ticket.part)
    kept.parent.mkdir(parents=True, exist_ok=True)
    arriving = kept.with_name(f".{kept.name}.{request.match_info['ticket']}")
    digest, size = hashlib.sha256(), 0
    try:
        with arriving.open("wb") as file:
            async for chunk in request.content.iter_any():
                digest.update(chunk)
                size += len(chunk)
                file.write(chunk)
        whole = ticket.part is not None or digest.hexdigest() == ticket.oid
        if size != ticket.size or not whole:
            raise Refused(400, "", "The content is not what was announced")
        arriving.replace(kept)
    finally:
        arriving.unlink(missing_ok=True)
    return web.Response(headers={"ETag": f'"{digest.hexdigest()}"'})


async def _complete(request: web.Request) -> web.Response:
    """Make an object of its parts."""
    ticket, asked = _ticket(request), await request.json()
    parts = [ticket.parts / str(part["partNumber"]) for part in asked["parts"]]
    kept, digest = ticket.directory / "blobs" / ticket.oid, hashlib.sha256()
    kept.parent.mkdir(parents=True, exist_ok=True)
    arriving = kept.with_name(f".{ticket.oid}.{request.match_info['ticket']}")
    with arriving.open("wb") as file:
        for number, part in enumerate(parts):
            data = part.read_bytes()
            if asked["parts"][number]["etag"].strip('"') != sha256_bytes(data):
                raise Refused(400, "", "A part is not what was sent")
            digest.update(data)
            file.write(data)
    if digest.hexdigest() != ticket.oid or arriving.stat().st_size != ticket.size:
        arriving.unlink()
        raise Refused(400, "", "The parts are not the object that was announced")
    arriving.replace(kept)
    shutil.rmtree(ticket.parts, ignore_errors=True)
    return web.json_response({})


async def _verify(request: web.Request) -> web.Response:
    asked = await request.json()
    blob = _writable(request).directory / "blobs" / str(asked["oid"])
    if not _SHA256.fullmatch(str(asked["oid"])) or not blob.is_file() or blob.stat().st_size != asked["size"]:
        raise Refused(404, "", "The object is not there")
    return web.json_response({})


async def _commit(request: web.Request) -> web.Response:
    repository = _writable(request)
    lines = [json.loads(line) for line in (await request.text()).splitlines() if line]
    header = next(line["value"] for line in lines if line["key"] == "header")
    head, branch = commit_of(request, repository), request.match_info["revision"]
    if branch not in repository.branches():
        raise Refused(404, "RevisionNotFound", f"{branch} is no branch")
    if header.get("parentCommit") not in (None, head.id):
        raise Refused(412, "", "A commit has happened since. Please refresh and try again.")
    files = {entry.path: entry for entry in head.files}
    for line in lines:
        _apply(repository, files, line["key"], line["value"])
    commit = commit_entries(repository.directory, files.values(), header["summary"], branch)
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
    path = str(value.get("path", ""))
    match key:
        case "file":
            files[path] = _small_entry(repository.directory, path, base64.b64decode(value["content"]))
        case "lfsFile":
            blob = repository.directory / "blobs" / str(value["oid"])
            if not _SHA256.fullmatch(str(value["oid"])) or not blob.is_file():
                raise Refused(400, "", f"The large file of {path} was never uploaded")
            files[path] = large_entry(path, str(value["oid"]), blob.stat().st_size)
        case "deletedFile":
            if files.pop(path, None) is None:
                raise Refused(404, "EntryNotFound", "A file with this name doesn't exist")
        case "deletedFolder":
            for below in [name for name in files if name.startswith(path.rstrip("/") + "/")]:
                del files[below]
        case "header":
            return
        case _:
            raise Refused(400, "", f"{key} is no change that a commit can make")
