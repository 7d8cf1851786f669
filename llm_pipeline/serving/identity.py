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

from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.endpoint_access import ask, require_model
from llm_pipeline.serving.protocols import MODEL_PATH

DIGEST_PARAMETER = "llm_pipeline_repository"
"""Parameter of a model that was loaded as one version of many; the served model does not read it."""

_PREFIX = "llm_pipeline:"


def served_name(digest: str) -> str:
    """The name that a server of this repository is started with."""
    return f"{_PREFIX}{digest}"


def require_served(endpoint: Endpoint, digest: str) -> None:
    """Check that an endpoint serves the repository of this digest, before anything is measured on it.

    Raises:
        IntegrityError: It serves another repository, or does not say which.
        Transient, ConfigError: As `ask`.
    """
    if endpoint.openai_model is not None:
        require_model(endpoint)
        return
    server, model = ask(endpoint, "/v2"), ask(endpoint, f"{MODEL_PATH}/config")
    try:
        name = str(json.loads(server.body)["name"])
        if model.status == HTTPStatus.OK and (loaded := _digest_of(json.loads(model.body))):
            name = served_name(loaded)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise IntegrityError("this is not a Triton server", where=endpoint.url) from error
    if name != served_name(digest):
        raise IntegrityError(
            f"the server there is {name!r}, not one of repository {digest[:12]}",
            where=endpoint.url,
            hint="run the staging stage of this release again",
        )


def _digest_of(config: dict[str, Any]) -> str:
    """The digest among a model's parameters; empty when it has none."""
    return str(config.get("parameters", {}).get(DIGEST_PARAMETER, {}).get("string_value", ""))
