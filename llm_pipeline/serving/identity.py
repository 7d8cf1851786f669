"""Which repository an endpoint serves: its digest is in the model's configuration, or else in the server's name.

A server that is started for one repository has a name (`GET /v2`) with the repository's digest. An existing
server has its own name; a version that is loaded into it has the digest among the parameters of its configuration. A
server with OpenAI's API states no digest: it must have the model that the endpoint names, and the golden outputs show
whether that is the release's model.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from llm_pipeline.base.bounded_http import call
from llm_pipeline.base.errors import IntegrityError, Transient
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.endpoint_access import request_headers, require_model, tls_context
from llm_pipeline.serving.protocols import MODEL_PATH

DIGEST_PARAMETER = "llm_pipeline_repository"
"""Parameter of a model that was loaded as one version of many; the served model does not read it."""

_PREFIX = "llm_pipeline:"
_TIMEOUT_SECONDS = 10.0


def served_name(digest: str) -> str:
    """The name that a server of this repository is started with."""
    return f"{_PREFIX}{digest}"


def require_served(endpoint: Endpoint, digest: str) -> None:
    """Check that an endpoint serves the repository of this digest, before anything is measured on it.

    Raises:
        IntegrityError: It serves another repository, or does not say which.
        Transient: No server answers there.
        ConfigError: A header's variable is not set, or the certificates cannot be read.
    """
    if endpoint.openai_model is not None:
        require_model(endpoint)
        return
    base = endpoint.url.rstrip("/")
    url = f"{base}/v2"
    headers, tls = request_headers(endpoint), tls_context(endpoint)
    try:
        server = call(url, seconds=_TIMEOUT_SECONDS, headers=headers, tls=tls)
        name = str(json.loads(server.body)["name"])
        model = call(f"{base}{MODEL_PATH}/config", seconds=_TIMEOUT_SECONDS, headers=headers, tls=tls)
        if model.status == HTTPStatus.OK and (loaded := _digest_of(json.loads(model.body))):
            name = served_name(loaded)
    except OSError as error:
        raise Transient(f"no server answers: {error}", where=url, hint="run the staging stage first") from error
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError("this is not a Triton server", where=url) from error
    if name != served_name(digest):
        raise IntegrityError(
            f"the server there is {name!r}, not one of repository {digest[:12]}",
            where=url,
            hint="run the staging stage of this release again",
        )


def _digest_of(config: dict[str, Any]) -> str:
    """The digest among a model's parameters; empty when it has none."""
    return str(config.get("parameters", {}).get(DIGEST_PARAMETER, {}).get("string_value", ""))
