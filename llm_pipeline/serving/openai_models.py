"""What a server with OpenAI's API says of the models that it serves: `GET /v1/models`."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from llm_pipeline.base.bounded_http import call
from llm_pipeline.base.errors import ConfigError, IntegrityError, Transient
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.endpoint_access import request_headers, tls_context
from llm_pipeline.serving.protocols import header_secrets, refusal_text, without
from llm_pipeline.serving.protocols.openai import MODELS_PATH

_ANSWER_SECONDS = 10.0
_LONGEST_ANSWER_BYTES = 4 * 1024 * 1024
_DENIED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE,
         HTTPStatus.GATEWAY_TIMEOUT)  # fmt: skip


def require_model(endpoint: Endpoint) -> int | None:
    """Check that the server has the endpoint's model.

    Returns:
        Tokens that one of its requests may have; None where the server does not say.

    Raises: As `_card`.
    """
    length = _card(endpoint).get("max_model_len")
    return length if isinstance(length, int) else None


def model_root(endpoint: Endpoint) -> str | None:
    """What the server says that the endpoint's model was loaded from; None where it does not say.

    Raises: As `_card`.
    """
    root = _card(endpoint).get("root")
    return root if isinstance(root, str) else None


def _card(endpoint: Endpoint) -> dict[str, Any]:
    """What the server says of the endpoint's model.

    Raises:
        Transient: Nobody answers there, or the server is not ready.
        ConfigError: It does not let us in.
        IntegrityError: It is not a server with OpenAI's API, or has other models.
    """
    url = f"{endpoint.url.rstrip('/')}{MODELS_PATH}"
    headers, tls = request_headers(endpoint), tls_context(endpoint)
    try:
        answer = call(url, seconds=_ANSWER_SECONDS, headers=headers, tls=tls, longest_bytes=_LONGEST_ANSWER_BYTES)
    except (OSError, ValueError) as error:
        said = without(str(error), header_secrets(headers))
        raise Transient(f"no server answers: {said}", where=url, hint="is it running, and is this its URL?") from None
    said = without(refusal_text(answer.body), header_secrets(headers))
    if answer.status in _DENIED:
        hint = "name the variable with its API key as api_key_variable of the endpoint, and set it for the workers"
        raise ConfigError(f"the server refuses access: {said}", where=url, hint=hint)
    if answer.status in _BUSY:
        raise Transient(f"the server is not ready: HTTP {answer.status}: {said}", where=url)
    models = _models(answer.body) if answer.status == HTTPStatus.OK else None
    if models is None:
        raise IntegrityError(f"this is not a server with OpenAI's API: HTTP {answer.status}", where=url)
    if endpoint.openai_model not in models:
        raise IntegrityError(
            f"the server has the models {', '.join(sorted(models)) or 'none'}, not {endpoint.openai_model}",
            where=url,
            hint="name one of them as openai_model, or serve the release under that name",
        )
    return models[endpoint.openai_model]


def _models(body: bytes) -> dict[str, dict[str, Any]] | None:
    """The models' cards by name; None if there are none to be read."""
    try:
        cards = {card["id"]: dict(card) for card in json.loads(body)["data"]}
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return cards if all(isinstance(name, str) for name in cards) else None
