"""A local server that speaks the Hugging Face Hub API, for models kept as plain directories.

    python -m llm_pipeline.demo.hub_server --root DIR --port 8080
    HF_ENDPOINT=http://127.0.0.1:8080 hf download organisation/name

It speaks the parts of the API that reading a model needs: model information, revisions, trees, branches, commits
and file downloads with ranges, entity tags and the hub's own error codes; and of those, information and files of data
sets. `hub_repository.publish_revision` fills it, and so does whoever pushes (`hub_uploads`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml
from aiohttp import web

from llm_pipeline.base.entry import ArgumentParser, entry_point
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.demo.hub_faults import BLOB, ENTITY_TAG, Faults, fault_middleware
from llm_pipeline.demo.hub_repository import HubCommit, HubEntry, HubRepository, publish_revision
from llm_pipeline.demo.hub_requests import (
    DATASETS,
    ROOT,
    Refused,
    answer_refusals,
    commit_of,
    repository_of,
    token_of,
)
from llm_pipeline.demo.hub_uploads import LONGEST_COMMIT_BYTES, PART_BYTES, add_uploads

__all__ = ["create_application", "main", "publish_revision"]

_PAGE = 1000
_MODEL = "/api/models/{organisation}/{name}"
_FILE = "/{organisation}/{name}/resolve/{revision}/{path:.+}"
_DATASET = "/api/datasets/{organisation}/{name}"


def create_application(root: Path, faults: Faults | None = None, part_bytes: int = PART_BYTES) -> web.Application:
    """The server as an aiohttp application.

    Args:
        root: Directory of all repositories.
        faults: Faults to inject, for tests.
        part_bytes: Large files come in parts of this size.
    """
    middlewares: list[Any] = [answer_refusals] + ([fault_middleware(faults)] if faults is not None else [])
    application = web.Application(middlewares=middlewares, client_max_size=LONGEST_COMMIT_BYTES)
    application[ROOT] = root
    application.on_response_prepare.append(_set_entity_tag)
    application.add_routes(
        [
            web.get("/api/whoami-v2", _whoami),
            web.get(_MODEL, _model_info),
            web.get(_MODEL + "/revision/{revision}", _model_info),
            web.get(_MODEL + "/tree/{revision}", _tree),
            web.get(_MODEL + "/tree/{revision}/{path:.+}", _tree),
            web.get(_MODEL + "/refs", _refs),
            web.get(_MODEL + "/commits/{revision}", _commits),
            web.get(_MODEL + "/auth-check", _authorization_check),
            web.get(_FILE, _file),  # answers HEAD too
            web.get(_DATASET, _model_info),
            web.get(_DATASET + "/revision/{revision}", _model_info),
            web.get(f"/{DATASETS}{_FILE}", _file),
        ]
    )
    add_uploads(application, part_bytes)
    return application


async def _whoami(request: web.Request) -> web.Response:
    if token_of(request) is None:
        raise Refused(401, "", "Invalid credentials in Authorization header")
    return web.json_response({"type": "user", "name": "local", "orgs": [], "auth": {"type": "access_token"}})


async def _model_info(request: web.Request) -> web.Response:
    repository = repository_of(request)
    commit = commit_of(request, repository)
    card = _card(repository, commit)
    license_tag = [f"license:{card['license']}"] if isinstance(card.get("license"), str) else []
    answer = {
        "_id": commit.id[:24],
        "id": repository.model_id,
        "modelId": repository.model_id,
        "author": repository.model_id.partition("/")[0],
        "sha": commit.id,
        "lastModified": _time(commit),
        "private": repository.rules.private,
        "gated": repository.rules.gated or False,
        "disabled": False,
        "tags": ["safetensors", *license_tag],
        "downloads": 0,
        "likes": 0,
        "cardData": card,
        "siblings": [_sibling(entry, with_blobs=bool(request.query.get("blobs"))) for entry in commit.files],
    }
    return web.json_response(answer)


def _card(repository: HubRepository, commit: HubCommit) -> dict[str, Any]:
    """The front matter of README.md, as the hub reads it."""
    readme = next((entry for entry in commit.files if entry.path == "README.md"), None)
    text = repository.blob(readme).read_text(errors="replace") if readme else ""
    match = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
    card = yaml.safe_load(match.group(1)) if match else None
    return card if isinstance(card, dict) else {}


def _sibling(entry: HubEntry, *, with_blobs: bool) -> dict[str, Any]:
    if not with_blobs:
        return {"rfilename": entry.path}
    sibling: dict[str, Any] = {"rfilename": entry.path, "blobId": entry.oid, "size": entry.size}
    if entry.large:
        sibling["lfs"] = {"sha256": entry.sha256, "size": entry.size, "pointerSize": entry.pointer_size}
    return sibling


def _time(commit: HubCommit) -> str:
    return commit.created_at.strftime("%Y-%m-%dT%H:%M:%S.000Z")


async def _tree(request: web.Request) -> web.Response:
    repository = repository_of(request)
    commit = commit_of(request, repository)
    inside = request.match_info.get("path", "")
    rows = _tree_rows(commit.files, inside, recursive=request.query.get("recursive", "").lower() in ("true", "1"))
    if inside and not rows:
        raise Refused(404, "EntryNotFound", f"{inside} does not exist on {commit.id}")
    start, limit = int(request.query.get("cursor", "0")), int(request.query.get("limit", str(_PAGE)))
    page = rows[start : start + limit]
    headers = {}
    if start + limit < len(rows):
        following = request.url.with_query(urlencode({**request.query, "cursor": start + limit}))
        headers["Link"] = f'<{following}>; rel="next"'
    return web.json_response(page, headers=headers)


def _tree_rows(files: Sequence[HubEntry], inside: str, *, recursive: bool) -> list[dict[str, Any]]:
    prefix = f"{inside.strip('/')}/" if inside else ""
    rows: dict[str, dict[str, Any]] = {}
    for entry in files:
        if not entry.path.startswith(prefix):
            continue
        parts = entry.path[len(prefix) :].split("/")
        for depth in range(1, len(parts) if recursive else min(len(parts), 2)):
            folder = prefix + "/".join(parts[:depth])
            rows[folder] = {"type": "directory", "path": folder, "oid": "0" * 40, "size": 0}
        if recursive or len(parts) == 1:
            rows[entry.path] = _tree_row(entry)
    return [rows[path] for path in sorted(rows)]


def _tree_row(entry: HubEntry) -> dict[str, Any]:
    row: dict[str, Any] = {"type": "file", "oid": entry.oid, "size": entry.size, "path": entry.path}
    if entry.large:
        row["lfs"] = {"oid": entry.sha256, "size": entry.size, "pointerSize": entry.pointer_size}
    return row


async def _refs(request: web.Request) -> web.Response:
    branches = [
        {"name": name, "ref": f"refs/heads/{name}", "targetCommit": commit}
        for name, commit in repository_of(request).branches().items()
    ]
    return web.json_response({"branches": branches, "converts": [], "tags": []})


async def _commits(request: web.Request) -> web.Response:
    repository = repository_of(request)
    commit_of(request, repository)
    answer = [
        {"id": commit.id, "title": commit.message, "message": "", "authors": [], "date": _time(commit)}
        for commit in repository.commits()
    ]
    return web.json_response(answer)


async def _authorization_check(request: web.Request) -> web.Response:
    repository_of(request, content=True)
    return web.Response()


async def _file(request: web.Request) -> web.StreamResponse:
    repository = repository_of(request, content=True)
    commit = commit_of(request, repository)
    entry = next((entry for entry in commit.files if entry.path == request.match_info["path"]), None)
    if entry is None:
        raise Refused(404, "EntryNotFound", "Entry not found")
    headers = {"X-Repo-Commit": commit.id, "Content-Type": "application/octet-stream"}
    if entry.large:
        headers |= {"X-Linked-ETag": f'"{entry.sha256}"', "X-Linked-Size": str(entry.size)}
    request[ENTITY_TAG] = entry.sha256 if entry.large else entry.oid
    request[BLOB] = repository.blob(entry)
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
    parser = ArgumentParser(prog="python -m llm_pipeline.demo.hub_server", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="directory of all repositories")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--faults", type=Path, help="JSON list of faults to inject, for tests")
    options = parser.parse_args(arguments)
    if not options.root.is_dir():
        raise ConfigError("the root is not a directory", where=str(options.root))
    application = create_application(options.root, Faults.load(options.faults) if options.faults else None)
    web.run_app(application, host=options.host, port=options.port, print=None)


if __name__ == "__main__":
    raise SystemExit(main())
