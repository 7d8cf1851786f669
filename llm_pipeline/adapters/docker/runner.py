"""The Docker runner: a stage in a container of the engine on the worker's host.

The job's directory is mounted at its own path, so request, log and outcome are files, as for a process. A container
is found again by its name, by any worker of this host, also after a reboot. It is kept until its outcome was read;
one that crashed is kept until its stage starts again, for people to look at.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from llm_pipeline.adapters.docker.adapter import DockerEnvironment, Mount
from llm_pipeline.adapters.docker.engine import GIB, Engine, Image, engine_answers, handed_on, how_it_ended
from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.base.directory_listing import list_directories
from llm_pipeline.base.durable import replace_durably
from llm_pipeline.base.errors import StageCrashed, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.release.contract import StageRequest, StageResult
from llm_pipeline.runners.runner import (
    STAGE_VARIABLES,
    Job,
    Placement,
    latest_number,
    locked_jobs,
    read_lines,
    read_outcome,
    stage_command,
)
from llm_pipeline.runners.shared import INSTALL_IN_IMAGE, crash, environment_of, image_of, job_base_name, request_labels
from llm_pipeline.runners.stage_environment import withheld_secrets
from llm_pipeline.store.provenance import CONTAINER_VARIABLE

log = get_logger(__name__)

_GRACE_SECONDS = 20
_TEMPORARY = "rw,exec,nosuid,nodev,mode=1777"
"""Compilers of kernels load what they write there, which Docker's default forbids."""


class DockerRunner:
    """Starts stages in containers. The engine is the one that Docker's own variables name (`DOCKER_HOST`)."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._work_root = Path(deployment.work_root)
        self._engine = Engine()

    def submit(self, request: StageRequest, placement: Placement) -> Job:
        """Start a stage; the same request while its container still runs gives that job.

        Raises:
            ConfigError: There is no image, it cannot be had, or the engine refuses the container.
            Transient: The engine or the registry cannot be reached.
            Unsupported: The Docker SDK is not installed here.
        """
        environment = environment_of(self._deployment, placement.environment, DockerEnvironment)
        image = image_of(self._deployment, environment.image, placement)
        text = request.model_dump_json(indent=1)
        digest = sha256_bytes(text.encode())
        name = job_base_name(request, digest, str(self._work_root))
        with locked_jobs(self._work_root, request) as base, engine_answers():
            number = latest_number(base)
            job = Job(
                runner="docker",
                environment=placement.environment,
                name=f"{name}-{number}",
                directory=base / str(number),
                request_digest=digest,
            )
            if number and self.is_active(job):
                return job
            # Earlier attempts go: an older configuration of the stage is superseded, a crashed one was looked at.
            for record in (directory / "container" for directory in list_directories(base)):
                if record.exists() and (earlier := record.read_text()):  # an empty one is left by a power cut
                    self._engine.remove(earlier, grace_seconds=_GRACE_SECONDS)
            job = job.model_copy(update={"name": f"{name}-{number + 1}", "directory": base / str(number + 1)})
            resolved = self._engine.image(image)
            job.directory.mkdir()
            job.request.write_text(text)
            withheld = withheld_secrets(request, self._deployment)
            options = _container_options(environment, resolved, request, job, withheld)
            replace_durably(job.directory / "container", job.name.encode())
            self._engine.start(options, hint="check image, python, mounts, gpus and network of the environment")
            log.info("a container runs the stage", container=job.name, image=resolved.recorded)
            return job

    def is_active(self, job: Job) -> bool:
        """Whether the stage's container still runs."""
        with engine_answers():
            return self._engine.is_active(job.name)

    def read_log(self, job: Job, offset: int) -> tuple[list[str], int]:
        """Whole log lines from a byte offset on, and the offset to go on from."""
        return read_lines(job.log, offset)

    def outcome(self, job: Job) -> StageResult:
        """The result of a stage that has ended; its container goes.

        Raises:
            StageCrashed: It ended without saying how.
            ConfigError: The image's interpreter does not run this package.
            PipelineError: The error it reported, in its own family.
        """
        if not job.result.exists():
            how, (lines, _) = "its container is gone", read_lines(job.log, 0)
            with engine_answers():
                if (container := self._engine.find(job.name)) is not None:
                    how = how_it_ended(container)
                    lines = lines or container.logs(tail=20).decode(errors="replace").splitlines()
            raise crash(
                f"the stage ended without a result: {how}",
                lines,
                where=f"container {job.name}",
                again="run it again: finished work is kept",
                install=INSTALL_IN_IMAGE,
            )
        try:
            with engine_answers():
                self._engine.remove(job.name, grace_seconds=_GRACE_SECONDS)
        except Transient as error:  # an engine that is away is no reason to lose an outcome
            log.warning("the container of an ended stage was not removed", container=job.name, reason=error.message)
        if result := read_outcome(job):
            return result
        raise StageCrashed("the stage's outcome cannot be understood", where=str(job.result), hint="run it again")

    def cancel(self, job: Job) -> None:
        """Stop the container, and with it everything in it."""
        with engine_answers():
            if container := self._engine.find(job.name):
                container.stop(timeout=_GRACE_SECONDS)


def _container_options(
    environment: DockerEnvironment, image: Image, request: StageRequest, job: Job, withheld: frozenset[str]
) -> dict[str, Any]:
    """Keyword arguments for `containers.create`: no privileges, no capabilities, a read-only root.

    Where the stage works and what it publishes to may be written, the rest as configured. Of the environment's
    variables the `withheld` ones are left out: secrets that this stage does not need.

    Raises:
        ConfigError: A variable that is to be handed on is not set here.
    """
    from docker import types

    writable = [request.work_root]
    if store := request.store.directory:
        writable.append(str(store))
    if request.store.cache and not Path(request.store.cache).is_relative_to(request.work_root):
        writable.append(request.store.cache)
    mounts = (*(Mount(source=path, writable=True) for path in writable), *environment.mounts)
    for mount in mounts:
        if mount.writable:
            Path(mount.source).mkdir(parents=True, exist_ok=True)  # else the engine makes it, as root
    asked: dict[str, Any] = {"count": -1 if environment.gpus == "all" else environment.gpus}
    if request.gpu_indices is not None:
        asked = {"device_ids": [str(gpu) for gpu in request.gpu_indices]}
    given = handed_on([name for name in environment.variables if name not in withheld])
    return {
        "image": image.run,
        "name": job.name,
        "command": [*stage_command(environment.python, request.stage, job), "--log", str(job.log)],
        "environment": given | STAGE_VARIABLES | {"HOME": "/tmp", CONTAINER_VARIABLE: image.recorded},  # noqa: S108
        "labels": request_labels(request),
        "mounts": [
            types.Mount(mount.path or mount.source, mount.source, type="bind", read_only=not mount.writable)
            for mount in mounts
        ],
        "device_requests": [types.DeviceRequest(**asked, capabilities=[["gpu"]])] if environment.gpus else [],
        "user": environment.user or f"{os.getuid()}:{os.getgid()}",
        "network_mode": environment.network,
        "read_only": True,
        "tmpfs": {"/tmp": _TEMPORARY},  # noqa: S108 - the container's own
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "init": True,
        "shm_size": round(environment.shared_memory_gib * GIB),
        "mem_limit": round(environment.memory_gib * GIB) if environment.memory_gib else None,
    }
