"""A local server that speaks the Hugging Face Hub API, for models kept as plain directories.

    python -m llm_pipeline.demo.hub_server --root DIR --port 8080
    HF_ENDPOINT=http://127.0.0.1:8080 hf download organisation/name

It speaks the parts of the API that reading a model needs: model information, revisions, trees and file downloads with
ranges, entity tags and the hub's own error codes; and of those, information and files of data sets.
`hub_repository.publish_revision` fills it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from llm_pipeline.base.entry import ArgumentParser, entry_point
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.demo.hub_repository import HubCommit, HubEntry, HubRepository

ROOT: web.AppKey[Path] = web.AppKey("root", Path)
DATASETS = "datasets"
"""Data sets are in this directory of the root, as models are in the root."""
ENTITY_TAG: web.RequestKey[str] = web.RequestKey("entity_tag", str)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_MODEL = "/api/models/{organisation}/{name}"
_FILE = "/{organisation}/{name}/resolve/{revision}/{path:.+}"
_DATASET = "/api/datasets/{organisation}/{name}"


def create_application(root: Path, *middlewares: Any, longest_bytes: int = 2**20) -> web.Application:
    """The server of all repositories below a directory, as an aiohttp application; `middlewares` see requests last."""
    application = web.Application(middlewares=[answer_refusals, *middlewares], client_max_size=longest_bytes)
    application[ROOT] = root
    application.on_response_prepare.append(_set_entity_tag)
    application.add_routes(
        [
            web.get(_MODEL, _model_info),
            web.get(_MODEL + "/revision/{revision}", _model_info),
            web.get(_MODEL + "/tree/{revision}", _tree),
            web.get(_FILE, _file),  # answers HEAD too
            web.get(_DATASET, _model_info),
            web.get(_DATASET + "/revision/{revision}", _model_info),
            web.get(f"/{DATASETS}{_FILE}", _file),
        ]
    )
    return application


class Refused(Exception):
    """An answer in the hub's own form: a status, an error code and a message."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.response_status = status
        self.headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})


class _Moved(Refused):
    """The repository has another name now."""

    def __init__(self, location: str) -> None:
        super().__init__(307, "", "Temporary Redirect")
        self.headers["Location"] = location


@web.middleware
async def answer_refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A middleware that answers what was refused as the hub does."""
    try:
        return await handler(request)
    except Refused as refused:
        body = None if request.method == "HEAD" else {"error": str(refused)}
        return web.json_response(body, status=refused.response_status, headers=refused.headers)


def token_of(request: web.Request) -> str | None:
    """The token that a request carries."""
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    return token or None if kind == "Bearer" else None


def repository_of(request: web.Request, *, content: bool = False) -> HubRepository:
    """The repository that a request names, if its sender may see it (and, with `content`, read its files)."""
    model_id = f"{request.match_info['organisation']}/{request.match_info['name']}"
    token = token_of(request)
    is_dataset = f"/{DATASETS}/" in request.path.removesuffix(request.match_info.get("path", ""))
    root = request.app[ROOT] / DATASETS if is_dataset else request.app[ROOT]
    repository = HubRepository.find(root, model_id)
    if repository is None or (repository.rules.private and not repository.rules.admits(token)):
        # The hub answers the same for a missing and for a hidden repository, so that names do not leak.
        raise Refused(404 if token else 401, "RepoNotFound", "Repository not found")
    if repository.rules.renamed_to:
        raise _Moved(str(request.rel_url).replace(model_id, repository.rules.renamed_to, 1))
    if repository.rules.disabled:
        raise Refused(403, "", "Access to this resource is disabled.")
    if content and repository.rules.gated and not repository.rules.admits(token):
        advice = f"Visit the page of {model_id} to ask for access." if token else "You must be authenticated."
        raise Refused(403 if token else 401, "GatedRepo", f"Access to model {model_id} is restricted. {advice}")
    return repository


def commit_of(request: web.Request, repository: HubRepository) -> HubCommit:
    """The commit that a request names; the newest of `main` where it names none."""
    revision = request.match_info.get("revision", "main")
    commit = repository.commit(revision)
    if commit is None:
        raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    return commit


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
    """All files, in one page: the client asks for no more than the whole."""
    return web.json_response([_tree_row(entry) for entry in commit_of(request, repository_of(request)).files])


def _tree_row(entry: HubEntry) -> dict[str, Any]:
    row: dict[str, Any] = {"type": "file", "oid": entry.oid, "size": entry.size, "path": entry.path}
    if entry.large:
        row["lfs"] = {"oid": entry.sha256, "size": entry.size, "pointerSize": entry.pointer_size}
    return row


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
    options = parser.parse_args(arguments)
    if not options.root.is_dir():
        raise ConfigError("the root is not a directory", where=str(options.root))
    web.run_app(create_application(options.root), host=options.host, port=options.port, print=None)


if __name__ == "__main__":
    raise SystemExit(main())
