"""The connection to the Docker engine that `DOCKER_HOST` names, and what all containers there share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from llm_pipeline.base.errors import ConfigError, Transient, Unsupported

_TIMEOUT_SECONDS = 120
_GIB = 2**30
_TEMPORARY = "rw,exec,nosuid,nodev,mode=1777"
"""Compilers of kernels load what they write there, which Docker's default forbids."""


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


class Containers:
    """The engine's containers, by their names; connected at the first use."""

    def __init__(self) -> None:
        self._client: Any = None

    @property
    def engine(self) -> Any:
        """A `docker.DockerClient`."""
        if self._client is None:
            self._client = connect()
        return self._client

    def find(self, name: str) -> Any:
        """A container; None where there is none of that name."""
        engine = self.engine
        from docker.errors import NotFound

        try:
            return engine.containers.get(name)
        except NotFound:
            return None


def confined(user: str | None, *, network: str, shared_memory_gib: float, memory_gib: float | None) -> dict[str, Any]:
    """Keyword arguments for `containers.create` of any container: no privileges, no capabilities, a read-only root."""
    return {
        "user": user or f"{os.getuid()}:{os.getgid()}",
        "network_mode": network,
        "read_only": True,
        "tmpfs": {"/tmp": _TEMPORARY},  # noqa: S108 - the container's own
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "init": True,
        "shm_size": round(shared_memory_gib * _GIB),
        "mem_limit": round(memory_gib * _GIB) if memory_gib else None,
    }


def handed_on(names: Sequence[str]) -> dict[str, str]:
    """The values of variables that a container gets from here.

    Raises:
        ConfigError: One is not set here.
    """
    if missing := [name for name in names if name not in os.environ]:
        raise ConfigError(
            f"not set here, and to be handed on to the container: {', '.join(missing)}",
            hint="set them where the worker runs, or take them out of the deployment's `variables`",
        )
    return {name: os.environ[name] for name in names}


def engine_and_image(image: str | None) -> str:
    """The engine's version, and the image; what `doctor` says.

    Raises:
        Unsupported: The Docker SDK is not installed here.
        Transient: The engine does not answer.
    """
    with engine_answers():
        return f"Docker engine {connect().version()['Version']}, image {image or 'of the target'}"
