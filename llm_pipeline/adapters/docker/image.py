"""From an image's name to the very image that runs: its digest, resolved before anything starts."""

from __future__ import annotations

from typing import Any

from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen

log = get_logger(__name__)


class ResolvedImage(Frozen):
    """An image of the engine.

    Attributes:
        run: What the engine starts: repository and digest, or the id of an image that was never in a registry.
        recorded: What the stage is told that it runs in: `repository@sha256:...`.
    """

    run: str
    recorded: str


def resolve_image(engine: Any, image: str) -> ResolvedImage:
    """The image by its digest; it is pulled when the engine does not have it.

    Args:
        engine: A `docker.DockerClient`.
        image: Repository with a tag or a digest.

    Raises:
        ConfigError: There is no such image, or it may not be pulled.
        Transient: The registry cannot be reached.
    """
    from docker.errors import ImageNotFound

    try:
        found = engine.images.get(image)
    except ImageNotFound:
        _pull(engine, image)
        found = engine.images.get(image)
    repository = repository_of(image)
    digests = found.attrs.get("RepoDigests") or []
    for digest in digests:
        name, _, _ = digest.partition("@")
        if name == repository or name.endswith(f"/{repository}"):
            return ResolvedImage(run=digest, recorded=digest)
    return ResolvedImage(run=found.id, recorded=f"{repository}@{found.id}")


def repository_of(image: str) -> str:
    """The image's name without tag and digest; a port of the registry is no tag."""
    name, _, _ = image.partition("@")
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def _pull(engine: Any, image: str) -> None:
    from docker.errors import APIError

    log.info("pulling the image; the engine does not have it", image=image)
    repository = repository_of(image)
    reference = image.removeprefix(repository)
    tag = reference.partition("@")[2] or reference.removeprefix(":") or "latest"
    try:
        for event in engine.api.pull(repository, tag=tag, stream=True, decode=True):
            if problem := event.get("error"):
                raise _pull_failed(image, problem)
    except APIError as error:
        raise _pull_failed(image, error.explanation or str(error)) from error


def _pull_failed(image: str, problem: str) -> ConfigError | Transient:
    """A registry that answers no is a matter of configuration; one that does not answer, of time."""
    unreachable = ("timeout", "timed out", "connection refused", "no such host", "connection reset", "toomanyrequests")
    if any(sign in problem.lower() for sign in unreachable):
        return Transient(f"the registry of {image} cannot be reached: {problem}", hint="try again later")
    return ConfigError(
        f"image {image} cannot be pulled: {problem}", hint="check its name and tag, and `docker login` as this user"
    )
