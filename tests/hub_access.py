"""Who may read and write the repositories of a local hub, as the hub itself has it: private, gated, disabled, renamed.

A repository that is not public has `access.json` in its directory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from aiohttp import web

from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.base.records import Frozen
from llm_pipeline.demo.hub import Handler, HubRepository, Refused, repository_of


class HubAccessRules(Frozen):
    """Who may read and write a repository.

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
        return self.admits_writing(token) or (token is not None and sha256_bytes(token.encode()) in self.readers)

    def admits_writing(self, token: str | None) -> bool:
        """Whether the token is one of the writers'."""
        return token is not None and sha256_bytes(token.encode()) in self.writers


def restrict(root: Path, model_id: str, rules: HubAccessRules) -> None:
    """Set who may read a repository."""
    directory = root / model_id
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "access.json").write_text(rules.model_dump_json())


def rules_of(repository: HubRepository) -> HubAccessRules:
    """The rules of `access.json`; without the file, all may read it."""
    file = repository.directory / "access.json"
    return HubAccessRules.model_validate_json(file.read_text()) if file.exists() else HubAccessRules()


def token_of(request: web.Request) -> str | None:
    """The token that a request carries."""
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    return token or None if kind == "Bearer" else None


@web.middleware
async def access(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse whoever may not see a repository, or not read its files; information says what kind of one it is."""
    if "organisation" not in request.match_info:
        return await handler(request)
    token = token_of(request)
    try:
        repository = repository_of(request)
        rules = rules_of(repository)
    except Refused:
        repository, rules = None, HubAccessRules()
    if repository is None or (rules.private and not rules.admits(token)):
        # The hub answers the same for a missing and for a hidden repository, so that names do not leak.
        raise Refused(404 if token else 401, "RepoNotFound", "Repository not found")
    model_id = repository.model_id
    if rules.renamed_to:
        location = str(request.rel_url).replace(model_id, rules.renamed_to, 1)
        raise Refused(307, "", "Temporary Redirect", Location=location)
    if rules.disabled:
        raise Refused(403, "", "Access to this resource is disabled.")
    if "/resolve/" in request.path and rules.gated and not rules.admits(token):
        advice = f"Visit the page of {model_id} to ask for access." if token else "You must be authenticated."
        raise Refused(403 if token else 401, "GatedRepo", f"Access to model {model_id} is restricted. {advice}")
    answer = await handler(request)
    if isinstance(answer, web.Response) and isinstance(answer.body, bytes) and b'"cardData"' in answer.body:
        told = json.loads(answer.body) | {"private": rules.private, "gated": rules.gated or False}
        return web.json_response(told)
    return answer
