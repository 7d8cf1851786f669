"""The hub's webhook: it makes the watches of a model look at once, and decides nothing.

    https://<airflow>/llm-pipeline/webhooks/hub      the URL to enter at huggingface.co/settings/webhooks
    LLM_PIPELINE_WEBHOOK_SECRET                      on the API server: the secret entered there

The route needs no user session, because the hub has none; it needs the secret. A caller who has it can make a watch
ask the hub again and nothing else: what is released stays the decision of the policy.
"""

from __future__ import annotations

import hmac
import os
import time
from functools import lru_cache
from pathlib import Path

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, ValidationError

from llm_pipeline.release.loading import ConfiguredRelease
from llm_pipeline.release.watch_record import call_webhook
from llm_pipeline.store import open_store
from llm_pipeline_airflow.connections import config_with_secrets
from llm_pipeline_airflow.faults import contained, known_fault
from llm_pipeline_airflow.guarded_routes import guarded_route
from llm_pipeline_airflow.logs import get_logger
from llm_pipeline_airflow.settings import release_configs, release_folders

router = APIRouter(
    route_class=guarded_route(lambda _error: JSONResponse({"detail": "Internal error: see the log"}, 500))
)

log = get_logger(__name__)

LONGEST_BODY = 256 * 1024
SECRET_HEADER = "X-Webhook-Secret"  # noqa: S105 - the name of a header, not a secret
_CONFIGS_SECONDS = 10.0


class _Repository(BaseModel):
    model_config = ConfigDict(extra="ignore")

    type: str
    name: str


class HubEvent(BaseModel):
    """The part of the hub's payload that is read; `huggingface_hub.WebhookPayload` is the whole of it."""

    model_config = ConfigDict(extra="ignore")

    repo: _Repository


@router.post("/webhooks/hub", status_code=202)
async def hub_webhook(request: Request) -> Response:
    """Make the watches of the model that the hub calls about look at once; 202 also when none watches it."""
    watched = await run_in_threadpool(_watched_here)
    admitted = _admitted(watched, request.headers.get(SECRET_HEADER, ""))
    if not admitted:
        raise HTTPException(status_code=403, detail="Forbidden")
    event = _read(await _body(request))
    if event.repo.type == "model":
        for config in (one for one in admitted if one.config.model.id.casefold() == event.repo.name.casefold()):
            await run_in_threadpool(_call, config)
    return Response(status_code=202)


def _watched_here() -> tuple[ConfiguredRelease, ...]:
    """The release configs with a watch; read again after some seconds, not for every caller."""
    return _read_configs(release_folders(), int(time.monotonic() / _CONFIGS_SECONDS))


@lru_cache(maxsize=1)
def _read_configs(folders: tuple[Path, ...], _period: int) -> tuple[ConfiguredRelease, ...]:
    found = []
    for path in release_configs(folders):
        with contained(path.name):  # a broken one is an import error
            loaded = config_with_secrets(path)
            if loaded.config.watch is not None:
                found.append(loaded)
    return tuple(found)


def _admitted(watched: tuple[ConfiguredRelease, ...], secret: str) -> list[ConfiguredRelease]:
    """The release configs whose secret it is; every one is compared, each in constant time."""
    given = secret.encode("latin-1")  # as it was sent: headers are decoded so
    secrets = [os.environ.get(one.deployment.hub.webhook_secret_variable, "").strip().encode() for one in watched]
    return [
        one
        for one, expected in zip(watched, secrets, strict=True)
        if hmac.compare_digest(given, expected) and expected != b""
    ]


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LONGEST_BODY:
            raise HTTPException(status_code=413, detail="Too large")
    return body


def _read(body: bytes) -> HubEvent:
    try:
        return HubEvent.model_validate_json(body)
    except ValidationError as error:
        raise HTTPException(status_code=422, detail="Not a webhook of the hub") from error


def _call(watched: ConfiguredRelease) -> None:
    name = watched.config.name
    try:
        call_webhook(open_store(watched.deployment.store), name)
    except Exception as error:
        known = known_fault(error, f"the hub's call about {name}")
        log.warning("the watch of %s could not be told of the hub's call: %s", name, known)
        raise HTTPException(status_code=503, detail="Try again later") from error
    log.info("the hub called about %s: the watch of %s looks at once", watched.config.model.id, name)
