"""What a stage's container is made of: the arguments of the Docker SDK's `containers.create`, from configuration only.

No privileges, no capabilities, a read-only root; what may be written is listed here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_pipeline.adapters.docker.environment import DockerEnvironment, Mount
from llm_pipeline.adapters.docker.image import ResolvedImage
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.labels import LABEL_PREFIX
from llm_pipeline.release.contract import StageRequest
from llm_pipeline.runners.job_directory import request_path
from llm_pipeline.runners.job_names import request_labels
from llm_pipeline.runners.runner import STAGE_VARIABLES, Job
from llm_pipeline.store.provenance import CONTAINER_VARIABLE

DIGEST_LABEL = f"{LABEL_PREFIX}request-digest"
_GIB = 2**30
_TEMPORARY = "rw,exec,nosuid,nodev,mode=1777"
"""Compilers of kernels load what they write there, which Docker's default forbids."""


def container_options(
    environment: DockerEnvironment, image: ResolvedImage, request: StageRequest, job: Job, withheld: frozenset[str]
) -> dict[str, Any]:
    """Keyword arguments for `containers.create`, but for mounts and GPU requests, which are types of the SDK.

    Of the environment's variables the `withheld` ones are left out: secrets that this stage does not need.

    Raises:
        ConfigError: A variable that is to be handed on is not set here.
    """
    return {
        "image": image.run,
        "name": job.name,
        "command": stage_command(environment.python, request, job),
        "environment": _variables(environment, image, os.environ, withheld),
        "labels": request_labels(request) | {DIGEST_LABEL: job.request_digest},
        "user": environment.user or f"{os.getuid()}:{os.getgid()}",
        "network_mode": environment.network,
        "read_only": True,
        "tmpfs": {"/tmp": _TEMPORARY},  # noqa: S108 - the container's own
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "init": True,
        "shm_size": round(environment.shared_memory_gib * _GIB),
        "mem_limit": round(environment.memory_gib * _GIB) if environment.memory_gib else None,
    }


def stage_command(python: str, request: StageRequest, job: Job) -> list[str]:
    """The stage's argument list; request, outcome and log are files of the job's directory."""
    command = [python, "-m", "llm_pipeline", "stage", "run", request.stage, "--request", str(request_path(job))]
    return [*command, "--result", str(job.result), "--log", str(job.log)]


def container_mounts(environment: DockerEnvironment, request: StageRequest) -> tuple[Mount, ...]:
    """Every mount: where the stage works and what it publishes to may be written, the rest as configured."""
    writable = [request.work_root]
    if store := request.store.directory:
        writable.append(str(store))
    if request.store.cache and not Path(request.store.cache).is_relative_to(request.work_root):
        writable.append(request.store.cache)
    return (*(Mount(source=path, writable=True) for path in writable), *environment.mounts)


def _variables(
    environment: DockerEnvironment, image: ResolvedImage, ours: Mapping[str, str], withheld: frozenset[str]
) -> dict[str, str]:
    wanted = [name for name in environment.variables if name not in withheld]
    if missing := [name for name in wanted if name not in ours]:
        raise ConfigError(
            f"not set here, and to be handed on to the container: {', '.join(missing)}",
            hint="set them where the worker runs, or take them out of the environment's variables",
        )
    given = {name: ours[name] for name in wanted}
    return given | STAGE_VARIABLES | {"HOME": "/tmp", CONTAINER_VARIABLE: image.recorded}  # noqa: S108
