"""The Docker engine that `DOCKER_HOST` names: its containers by name, and from an image's name to its digest."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from llm_pipeline.adapters.docker.adapter import DockerEnvironment
from llm_pipeline.base.errors import ConfigError, Transient, Unsupported
from llm_pipeline.base.logging import get_logger

log = get_logger(__name__)

_TIMEOUT_SECONDS = 120
GIB = 2**30
_ACTIVE = ("running", "paused", "restarting", "removing")
_SERVER_ERROR = 500
_WRONG_CONFIGURATION = ("executable file not found", "no such file or directory", "could not select device driver")
"""What engines answer with a server's error (5xx) though the request is at fault."""

_UNREACHABLE = ("timeout", "timed out", "connection refused", "no such host", "connection reset", "toomanyrequests")


class Image(NamedTuple):
    """An image of the engine.

    Attributes:
        run: What the engine starts: repository and digest, or the id of an image that was never in a registry.
        recorded: What the stage is told that it runs in: `repository@sha256:...`.
    """

    run: str
    recorded: str


class Engine:
    """Containers by their names; connected at the first use."""

    def __init__(self) -> None:
        self._client: Any = None

    @property
    def client(self) -> Any:
        """A `docker.DockerClient`, for what is done within `engine_answers`."""
        if self._client is None:
            import docker

            self._client = docker.from_env(timeout=_TIMEOUT_SECONDS)
        return self._client

    def find(self, name: str) -> Any:
        """A container; None where there is none of that name."""
        containers = self.client.containers
        from docker.errors import NotFound

        try:
            return containers.get(name)
        except NotFound:
            return None

    def is_active(self, name: str) -> bool:
        """Whether a container of that name runs, or waits to."""
        container = self.find(name)
        return container is not None and container.status in _ACTIVE

    def start(self, options: dict[str, Any], *, hint: str) -> Any:
        """Create and start a container; a failed start leaves none.

        Raises:
            ConfigError: The engine refuses it.
            Transient: It cannot start it now.
        """
        containers = self.client.containers
        from docker.errors import APIError

        container = None
        try:
            container = containers.create(**options)
            container.start()
        except APIError as error:
            if container is not None:
                container.remove(force=True)
            said = error.explanation or str(error)
            at_fault = error.status_code < _SERVER_ERROR or any(sign in said for sign in _WRONG_CONFIGURATION)
            family = ConfigError if at_fault else Transient
            where = f"container {options['name']}"
            raise family(f"the engine does not start it: {said}", where=where, hint=hint) from error
        return container

    def remove(self, name: str, *, grace_seconds: int) -> None:
        """End a container and remove it; none is fine."""
        container = self.find(name)
        if container is not None:
            if container.status in _ACTIVE:
                container.stop(timeout=grace_seconds)
            container.remove(force=True)

    def image(self, name: str) -> Image:
        """An image by its digest; it is pulled when the engine does not have it.

        Args:
            name: Repository with a tag or a digest.

        Raises:
            ConfigError: There is no such image, or it may not be pulled.
            Transient: The registry cannot be reached.
        """
        client, repository = self.client, repository_of(name)
        from docker.errors import APIError, ImageNotFound

        try:
            found = client.images.get(name)
        except ImageNotFound:
            log.info("pulling the image; the engine does not have it", image=name)
            reference = name.removeprefix(repository)
            tag = reference.partition("@")[2] or reference.removeprefix(":") or "latest"
            try:
                for event in client.api.pull(repository, tag=tag, stream=True, decode=True):
                    if problem := event.get("error"):
                        raise _pull_failed(name, problem) from None
            except APIError as error:
                raise _pull_failed(name, error.explanation or str(error)) from error
            found = client.images.get(name)
        for digest in found.attrs.get("RepoDigests") or []:
            known, _, _ = digest.partition("@")
            if known == repository or known.endswith(f"/{repository}"):
                return Image(run=digest, recorded=digest)
        return Image(run=found.id, recorded=f"{repository}@{found.id}")


@contextlib.contextmanager
def engine_answers() -> Iterator[None]:
    """Errors of the connection to the engine, as ours.

    Raises:
        Unsupported: The Docker SDK is not installed here.
    """
    try:
        import requests
        from docker.errors import DockerException
    except ImportError as error:
        problem = "containers need the Docker SDK, which is not installed in this interpreter"
        raise Unsupported(problem, hint="pip install 'llm-pipeline[docker]'") from error
    try:
        yield
    except (DockerException, requests.RequestException) as error:
        hint = "is it running, and may this user use it? DOCKER_HOST says which one is meant"
        raise Transient(f"the Docker engine does not answer: {error}", hint=hint) from error


def repository_of(image: str) -> str:
    """The image's name without tag and digest; a port of the registry is no tag."""
    name, _, _ = image.partition("@")
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def _pull_failed(image: str, problem: str) -> ConfigError | Transient:
    """A registry that answers no is a matter of configuration; one that does not answer, of time."""
    if any(sign in problem.lower() for sign in _UNREACHABLE):
        return Transient(f"the registry of {image} cannot be reached: {problem}", hint="try again later")
    hint = "check its name and tag, and `docker login` as this user"
    return ConfigError(f"image {image} cannot be pulled: {problem}", hint=hint)


def how_it_ended(container: Any) -> str:
    """How a container ended, in a few words."""
    state = container.attrs["State"]
    if state.get("OOMKilled"):
        limit = container.attrs["HostConfig"].get("Memory") or 0
        return f"out of host memory (memory_gib: {limit / GIB:g})" if limit else "out of host memory"
    return f"exit code {state['ExitCode']} {state.get('Error') or ''}".rstrip()


def handed_on(names: Sequence[str]) -> dict[str, str]:
    """The values of variables that a container gets from here.

    Raises:
        ConfigError: One is not set here.
    """
    if missing := [name for name in names if name not in os.environ]:
        hint = "set them where the worker runs, or take them out of the deployment's `variables`"
        raise ConfigError(f"not set here, and to be handed on to the container: {', '.join(missing)}", hint=hint)
    return {name: os.environ[name] for name in names}


def engine_and_image(environment: DockerEnvironment) -> str:
    """The engine's version, and the image; what `doctor` says.

    Raises:
        Unsupported: The Docker SDK is not installed here.
        Transient: The engine does not answer.
    """
    with engine_answers():
        return f"Docker engine {Engine().client.version()['Version']}, image {environment.image or 'of the target'}"
