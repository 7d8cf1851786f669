"""What runners have in common: their environment, the names of containers and Kubernetes Jobs, the error of a crash."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from llm_pipeline.base.digest import sha256_json
from llm_pipeline.base.errors import ConfigError, StageCrashed
from llm_pipeline.base.labels import LABEL_PREFIX, label_value
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.environment import EnvironmentModel
from llm_pipeline.release.contract import StageRequest
from llm_pipeline.runners.runner import Placement

INSTALL_IN_IMAGE = (
    "build an image in which `python -m llm_pipeline --version` answers, or name another image or python: under "
    "environments: in the deployment file"
)

_LAST_LINES = 8
_LONGEST_LINE = 300
_NO_MODULE = re.compile(r"No module named \S+$")
_TOO_OLD = re.compile(r"unknown option:? -P$", re.IGNORECASE)
_READABLE_LENGTH = 40
_HASH_LENGTH = 10

EnvironmentT = TypeVar("EnvironmentT", bound=EnvironmentModel)


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


def image_of(deployment: Deployment, own: str | None, placement: Placement) -> str:
    """The image that a stage runs in: the environment's own, else the target's container.

    Raises:
        ConfigError: Neither names one.
    """
    image = own or placement.container
    if image is None:
        raise ConfigError(
            f"environment {placement.environment!r} names no image, and nor does the target",
            where=f"deployment {deployment.name}",
            hint="name it as image: of the environment, or as container: of the target",
        )
    return image


def work_hash(request: StageRequest) -> str:
    """What is worked on, whatever its configuration: at any time only one job should."""
    return sha256_json([request.release_id, request.stage, request.subject])[:16]


def job_base_name(request: StageRequest, *exact: str) -> str:
    """Name of a request's jobs without the number of the attempt: a DNS label of at most 51 characters.

    Args:
        request: Gives the readable part.
        exact: Tells apart what would read alike: the request's digest, or the work directory of its deployment.
    """
    readable = re.sub(r"[^a-z0-9]+", "-", f"llm-{request.stage}-{request.subject}".lower())[:_READABLE_LENGTH]
    return f"{readable.strip('-')}-{sha256_json([work_hash(request), *exact])[:_HASH_LENGTH]}"


def request_labels(request: StageRequest) -> dict[str, str]:
    """Labels that tell a person what a container or a Job works on."""
    labels = {
        "app.kubernetes.io/name": "llm-pipeline",
        "app.kubernetes.io/component": "stage",
        "app.kubernetes.io/managed-by": "llm-pipeline",
        f"{LABEL_PREFIX}release": label_value(request.release_id),
        f"{LABEL_PREFIX}stage": label_value(request.stage),
        f"{LABEL_PREFIX}work": work_hash(request),
    }
    return labels | ({f"{LABEL_PREFIX}subject": label_value(request.subject)} if request.subject else {})


def crash(
    how: str, lines: Sequence[str], *, where: str, install: str, again: str = "run it again: finished work is kept"
) -> StageCrashed | ConfigError:
    """The error of a stage without an outcome: most can be run again, but not one whose interpreter lacks the package.

    Args:
        how: What is known of its end.
        lines: Its log, as far as there is one.
        where: Its job.
        install: What to do about an interpreter that does not run this package.
        again: What to do about a crash.
    """
    if said := _never_began(lines):
        return ConfigError(f"the stage's interpreter does not run this package: {said}", where=where, hint=install)
    last = "\n".join(line[:_LONGEST_LINE] for line in lines[-_LAST_LINES:])
    return StageCrashed(f"the stage ended without a result: {how}; its last lines:\n{last}", where=where, hint=again)


def _never_began(lines: Sequence[str]) -> str:
    """What Python says where it cannot start this package; a stage that has begun reports such errors itself."""
    if not lines or any(line.startswith("{") for line in lines):  # those are of a stage that has begun
        return ""
    first, last = lines[0].strip(), lines[-1].strip()
    if _NO_MODULE.search(last):
        return last
    return f"{first} (it is too old)" if _TOO_OLD.search(first) else ""
