"""What a deployment says of an environment, for the runner that it belongs to."""

from __future__ import annotations

from typing import Protocol, TypeVar

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.environment import EnvironmentModel
from llm_pipeline.runners.runner import Placement

EnvironmentT = TypeVar("EnvironmentT", bound=EnvironmentModel)


class ContainerEnvironment(Protocol):
    """An environment that may name an image."""

    @property
    def image(self) -> str | None:
        """Image with its tag or digest; None for the target's own."""


def environment_of(deployment: Deployment, name: str, kind: type[EnvironmentT]) -> EnvironmentT:
    """The environment of that name.

    Raises:
        ConfigError: There is none, or it is of another runner: the deployment was changed while a job of it ran.
    """
    environment = deployment.environments.get(name)
    if isinstance(environment, kind):
        return environment
    raise ConfigError(
        f"environment {name!r} is not, or is no longer, one of {kind.__name__.removesuffix('Environment')}",
        where=f"deployment {deployment.name}",
        hint="name it under environments: in the deployment file",
    )


def image_of(deployment: Deployment, environment: ContainerEnvironment, placement: Placement) -> str:
    """The image that a stage runs in: the environment's own, else the target's container.

    Raises:
        ConfigError: Neither names one.
    """
    image = environment.image or placement.container
    if image is None:
        raise ConfigError(
            f"environment {placement.environment!r} names no image, and nor does the target",
            where=f"deployment {deployment.name}",
            hint="name it as image: of the environment, or as container: of the target",
        )
    return image
