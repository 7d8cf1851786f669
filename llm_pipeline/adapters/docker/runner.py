"""The Docker runner: a stage in a container of the engine on the worker's host.

The job's directory is mounted at its own path, so request, log and outcome are files, as for a process. A container
is found again by its name, by any worker of this host, also after a reboot. It is kept until its outcome was read;
one that crashed is kept until its stage starts again, for people to look at.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_pipeline.adapters.docker.adapter import DockerEnvironment, Mount
from llm_pipeline.adapters.docker.connection import Containers, confined, engine_answers, handed_on
from llm_pipeline.adapters.docker.image import ResolvedImage, resolve_image
from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.base.directory_listing import list_directories
from llm_pipeline.base.durable import replace_durably
from llm_pipeline.base.errors import ConfigError, StageCrashed, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.release.contract import StageRequest, StageResult
from llm_pipeline.runners.job_directory import (
    latest_number,
    locked_jobs,
    read_lines,
    read_outcome,
    request_path,
)
from llm_pipeline.runners.runner import STAGE_VARIABLES, Job, Placement
from llm_pipeline.runners.shared import INSTALL_IN_IMAGE, crash, environment_of, image_of, job_base_name, request_labels
from llm_pipeline.runners.stage_environment import withheld_secrets
from llm_pipeline.store.provenance import CONTAINER_VARIABLE

log = get_logger(__name__)

_GRACE_SECONDS = 20
_ACTIVE = ("running", "paused", "restarting", "removing")
_SERVER_ERROR = 500
_WRONG_CONFIGURATION = ("executable file not found", "no such file or directory", "could not select device driver")
"""What engines answer with a server's error (5xx) though the request is at fault."""


class DockerRunner:
    """Starts stages in containers. The engine is the one that Docker's own variables name (`DOCKER_HOST`)."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._work_root = Path(deployment.work_root)
        self._containers = Containers()

    def submit(self, request: StageRequest, placement: Placement) -> Job:
        """Start a stage; the same request while its container still runs gives that job.

        Raises:
            ConfigError: There is no image, it cannot be had, or the engine refuses the container.
            Transient: The engine or the registry cannot be reached.
            Unsupported: The Docker SDK is not installed here.
        """
        environment = environment_of(self._deployment, placement.environment, DockerEnvironment)
        image = image_of(self._deployment, environment, placement)
        text = request.model_dump_json(indent=1)
        digest = sha256_bytes(text.encode())
        name = job_base_name(request, digest, str(self._work_root))
        with locked_jobs(self._work_root, request) as base, engine_answers():
            number = latest_number(base)
            job = self._job(placement, base, number, name, digest)
            if number and self.is_active(job):
                return job
            self._remove_others(base)
            job = self._job(placement, base, number + 1, name, digest)
            resolved = resolve_image(self._containers.engine, image)
            job.directory.mkdir()
            request_path(job).write_text(text)
            options = container_options(
                environment, resolved, request, job, withheld_secrets(request, self._deployment)
            )
            replace_durably(job.directory / "container", job.name.encode())
            self._start(options | self._sdk_options(environment, request), job)
            log.info("a container runs the stage", container=job.name, image=resolved.recorded)
            return job

    def is_active(self, job: Job) -> bool:
        """Whether the stage's container still runs."""
        with engine_answers():
            container = self._containers.find(job.name)
            return container is not None and container.status in _ACTIVE

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
            with engine_answers():
                raise self._crash(job)
        self._remove(job)
        if result := read_outcome(job):
            return result
        raise StageCrashed("the stage's outcome cannot be understood", where=str(job.result), hint="run it again")

    def cancel(self, job: Job) -> None:
        """Stop the container, and with it everything in it."""
        with engine_answers():
            if container := self._containers.find(job.name):
                container.stop(timeout=_GRACE_SECONDS)

    def _job(self, placement: Placement, base: Path, number: int, name: str, digest: str) -> Job:
        return Job(
            runner="docker",
            environment=placement.environment,
            name=f"{name}-{number}",
            directory=base / str(number),
            request_digest=digest,
        )

    def _remove_others(self, base: Path) -> None:
        """Earlier attempts go: an older configuration of the same stage is superseded, a crashed one was looked at."""
        for record in (directory / "container" for directory in list_directories(base)):
            name = record.read_text() if record.exists() else ""
            if name and (container := self._containers.find(name)):  # an empty record is one that a power cut left
                if container.status in _ACTIVE:
                    container.stop(timeout=_GRACE_SECONDS)
                container.remove(force=True)

    def _sdk_options(self, environment: DockerEnvironment, request: StageRequest) -> dict[str, Any]:
        from docker.types import DeviceRequest, Mount

        mounts = container_mounts(environment, request)
        for mount in mounts:
            if mount.writable:
                Path(mount.source).mkdir(parents=True, exist_ok=True)  # else the engine makes it, as root
        options: dict[str, Any] = {
            "mounts": [
                Mount(mount.path or mount.source, mount.source, type="bind", read_only=not mount.writable)
                for mount in mounts
            ]
        }
        if environment.gpus:
            asked: dict[str, Any] = {"count": -1 if environment.gpus == "all" else environment.gpus}
            if request.gpu_indices is not None:
                asked = {"device_ids": [str(gpu) for gpu in request.gpu_indices]}
            options["device_requests"] = [DeviceRequest(**asked, capabilities=[["gpu"]])]
        return options

    def _remove(self, job: Job) -> None:
        """An engine that is away is no reason to lose an outcome."""
        try:
            with engine_answers():
                if container := self._containers.find(job.name):
                    container.remove(force=True)
        except Transient as error:
            log.warning("the container of an ended stage was not removed", container=job.name, reason=error.message)

    def _start(self, options: dict[str, Any], job: Job) -> None:
        from docker.errors import APIError

        container = None
        try:
            container = self._containers.engine.containers.create(**options)
            container.start()
        except APIError as error:
            if container is not None:
                container.remove(force=True)
            raise _refused(error, job) from error

    def _crash(self, job: Job) -> StageCrashed | ConfigError:
        container = self._containers.find(job.name)
        lines, _ = read_lines(job.log, 0)
        if container is None:
            how = "its container is gone"
        else:
            how = _ending(container.attrs)
            lines = lines or container.logs(tail=20).decode(errors="replace").splitlines()
        return crash(
            f"the stage ended without a result: {how}",
            lines,
            where=f"container {job.name}",
            again="run it again: finished work is kept",
            install=INSTALL_IN_IMAGE,
        )


def _ending(attributes: dict[str, Any]) -> str:
    state = attributes["State"]
    if state.get("OOMKilled"):
        limit = attributes["HostConfig"].get("Memory") or 0
        return f"out of host memory (memory_gib: {limit / 2**30:g})" if limit else "out of host memory"
    return f"exit code {state['ExitCode']} {state.get('Error') or ''}".rstrip()


def _refused(error: Any, job: Job) -> ConfigError | Transient:
    explanation = error.explanation or str(error)
    at_fault = error.status_code < _SERVER_ERROR or any(sign in explanation for sign in _WRONG_CONFIGURATION)
    family = ConfigError if at_fault else Transient
    return family(
        f"the engine does not start the stage: {explanation}",
        where=f"container {job.name}",
        hint="check image, python, mounts, gpus and network of the environment",
    )


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
        "environment": _variables(environment, image, withheld),
        "labels": request_labels(request),
        **confined(
            environment.user,
            network=environment.network,
            shared_memory_gib=environment.shared_memory_gib,
            memory_gib=environment.memory_gib,
        ),
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


def _variables(environment: DockerEnvironment, image: ResolvedImage, withheld: frozenset[str]) -> dict[str, str]:
    given = handed_on([name for name in environment.variables if name not in withheld])
    return given | STAGE_VARIABLES | {"HOME": "/tmp", CONTAINER_VARIABLE: image.recorded}  # noqa: S108
