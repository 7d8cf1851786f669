"""What a request to the demo's hub names, whether its sender may have that, and how it is refused."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from llm_pipeline.demo.hub_faults import Handler
from llm_pipeline.demo.hub_repository import HubCommit, HubRepository

ROOT: web.AppKey[Path] = web.AppKey("root", Path)
DATASETS = "datasets"
"""Data sets are in this directory of the root, as models are in the root."""


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
