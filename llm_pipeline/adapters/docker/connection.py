"""The connection to the Docker engine that Docker's own variables name (`DOCKER_HOST`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from llm_pipeline.base.errors import Transient, Unsupported

_TIMEOUT_SECONDS = 120


def connect() -> Any:
    """A `docker.DockerClient`.

    Raises:
        Unsupported: The Docker SDK is not installed here.
    """
    try:
        import docker
    except ImportError as error:
        raise Unsupported(
            "containers need the Docker SDK, which is not installed in this interpreter",
            hint="pip install 'llm-pipeline[docker]'",
        ) from error
    return docker.from_env(timeout=_TIMEOUT_SECONDS)


@contextlib.contextmanager
def engine_answers() -> Iterator[None]:
    """Errors of the connection to the engine, as ours."""
    try:
        import requests
        from docker.errors import DockerException
    except ImportError:
        yield  # `connect` says what is missing
        return
    try:
        yield
    except (DockerException, requests.RequestException) as error:
        raise Transient(
            f"the Docker engine does not answer: {error}",
            hint="is it running, and may this user use it? DOCKER_HOST says which one is meant",
        ) from error
