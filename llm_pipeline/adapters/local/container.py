"""Stages in containers, by the programs `docker` and `podman`: `run` before the command of the process runner.

The job's directory is mounted at its own path, so request, log and outcome are files, as for a process. A container
is found again by its name, also after a reboot. It is kept until its outcome was read; one that crashed is kept until
its stage starts again, for people to look at.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path
from textwrap import shorten
from typing import Any

from llm_pipeline.adapters.local.adapter import ContainerEnvironment, Mount
from llm_pipeline.adapters.local.runner import ProcessRunner
from llm_pipeline.base.errors import ConfigError, PipelineError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.release.contract import StageRequest, StageResult
from llm_pipeline.runners.runner import STAGE_VARIABLES, Job, Placement, read_lines, stage_command
from llm_pipeline.runners.shared import INSTALL_IN_IMAGE, crash, environment_of, image_of, request_labels
from llm_pipeline.runners.stage_environment import withheld_secrets
from llm_pipeline.store.provenance import CONTAINER_VARIABLE

log = get_logger(__name__)

_GIB = 2**30
_KILLED = 128 + 9
_TIMEOUT_SECONDS = 120.0
_ACTIVE = ("running", "paused", "restarting", "stopping", "removing")
_ABSENT = ("no such container", "no such image", "image not known")
_MAY_PASS = (
    "cannot connect", "error during connect", "timeout", "timed out", "deadline exceeded", "connection refused",
    "connection reset", "no such host", "name resolution", "network is unreachable", "unexpected eof",
    "toomanyrequests", "service unavailable", "bad gateway", "no space left", "cannot allocate memory",
)  # fmt: skip
"""What engines and registries say when the same may work later."""


class _Absent(ConfigError):
    """There is no such container or image."""


class ContainerRunner(ProcessRunner):
    """Starts stages in containers of the engine whose program is the environment's runner."""

    def start(self, request: StageRequest, placement: Placement, job: Job) -> None:
        environment = environment_of(self._deployment, placement.environment, ContainerEnvironment)
        image, recorded = found_image(job.runner, image_of(self._deployment, environment.image, placement))
        options = ["--detach", f"--name={job.name}", f"--env={CONTAINER_VARIABLE}={recorded}"]
        options += _options(environment, request, withheld_secrets(request, self._deployment))
        command = [*stage_command(environment.python, request.stage, job), "--log", str(job.log)]
        try:  # in the job's directory, because Podman's monitor may leave a file `oom` where it is started
            asked(job.runner, "run", *options, image, *command, directory=job.directory)
        except PipelineError:
            self.clear(job)  # it may have been made, and not started
            raise
        log.info("a container runs the stage", container=job.name, image=recorded)

    def is_active(self, job: Job) -> bool:
        container = _inspected(job)
        return container is not None and container["State"]["Status"] in _ACTIVE

    def outcome(self, job: Job) -> StageResult:
        if job.result.exists():
            try:
                self.clear(job)
            except Transient as error:  # an engine that is away is no reason to lose an outcome
                log.warning("the container of an ended stage was not removed", container=job.name, reason=error.message)
            return super().outcome(job)
        how, (lines, _) = "its container is gone", read_lines(job.log, 0)
        if container := _inspected(job):
            state, limit = container["State"], container["HostConfig"].get("Memory") or 0
            how = f"exit code {state['ExitCode']} {state.get('Error') or ''}".rstrip()
            if state.get("OOMKilled") or state["ExitCode"] == _KILLED:
                how += f", {'' if state.get('OOMKilled') else 'killed, or '}out of host memory"
                how += f" (memory_gib: {limit / _GIB:g})" if limit else ""
            lines = lines or asked(job.runner, "logs", "--tail=20", job.name).splitlines()
        raise crash(how, lines, where=f"container {job.name}", install=INSTALL_IN_IMAGE)

    def cancel(self, job: Job) -> None:
        with contextlib.suppress(_Absent):
            asked(job.runner, "stop", "-t=20", job.name)

    def clear(self, job: Job) -> None:
        self.cancel(job)
        with contextlib.suppress(_Absent):
            asked(job.runner, "rm", "--force", job.name)


def asked(engine: str, *arguments: str, directory: Path | None = None, seconds: float | None = _TIMEOUT_SECONDS) -> str:
    """What the engine's program answers.

    Args:
        engine: The program; where its engine is, it knows by variables and files of its own.
        arguments: They show in the process list, so they hold no secret.
        directory: Where it runs; None for where this process does.
        seconds: Longest wait; None for any.

    Raises:
        ConfigError: There is no such program, or the engine refuses.
        Transient: The engine or a registry cannot be reached, or cannot do it now.
    """
    options: dict[str, Any] = {"capture_output": True, "errors": "replace", "cwd": directory, "timeout": seconds}
    told = shorten(" ".join([engine, *arguments]), 100, placeholder=" ...")
    try:
        answer = subprocess.run([engine, *arguments], check=False, **options)
    except OSError as error:
        hint = "install it here, or choose another runner in the deployment file"
        raise ConfigError(f"the program {engine} cannot be started: {error.strerror}", hint=hint) from error
    except subprocess.TimeoutExpired as error:
        raise Transient(f"{told} took longer than {seconds:g} s", hint="try again later") from error
    if answer.returncode == 0:
        return str(answer.stdout or answer.stderr)  # a log may be on stderr alone; else that has warnings
    said = " ".join(line for line in answer.stderr.splitlines() if line and not line.startswith(("Run '", "See '")))
    kind: type[PipelineError] = ConfigError
    if any(sign in said.lower() for sign in _ABSENT):
        kind = _Absent
    elif any(sign in said.lower() for sign in _MAY_PASS):
        kind = Transient
    hint = f"check the environment in the deployment file, and as this user `{engine} info` and `{engine} login`"
    raise kind(f"{told} failed: {said}", hint=hint)


def _inspected(job: Job) -> Any:
    """What the engine knows of a job's container; None where there is none of its name."""
    try:
        return json.loads(asked(job.runner, "container", "inspect", job.name))[0]
    except _Absent:
        return None


def found_image(engine: str, name: str) -> tuple[str, str]:
    """What an image is run by, and what is recorded: its repository with its digest, where a registry gave one.

    It is pulled when the engine does not have it.

    Args:
        engine: The program.
        name: Repository with a tag or a digest.

    Raises:
        ConfigError: There is no such image, or it may not be pulled.
        Transient: The registry cannot be reached.
    """
    try:
        text = asked(engine, "image", "inspect", name)
    except _Absent:
        log.info("pulling the image; the engine does not have it", image=name)
        asked(engine, "pull", "--quiet", name, seconds=None)
        text = asked(engine, "image", "inspect", name)
    image, repository = json.loads(text)[0], repository_of(name)
    for digest in image["RepoDigests"] or ():
        if f"/{digest}".partition("@")[0].endswith(f"/{repository}"):
            return digest, digest
    return image["Id"], f"{repository}@sha256:{image['Id'].removeprefix('sha256:')}"


def repository_of(image: str) -> str:
    """The image's name without tag and digest; a port of the registry is no tag."""
    name, _, _ = image.partition("@")
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def _options(environment: ContainerEnvironment, request: StageRequest, withheld: frozenset[str]) -> list[str]:
    """Options of `run`: no privileges, no capabilities, a read-only root.

    Where the stage works and what it publishes to may be written, the rest as configured. Of the environment's
    variables the `withheld` ones are left out: secrets that this stage does not need. They are named only: the program
    takes their values from its own environment, so that no list of processes shows them.

    Raises:
        ConfigError: A variable that is to be handed on is not set here.
    """
    given = [name for name in environment.variables if name not in withheld]
    if missing := [name for name in given if name not in os.environ]:
        hint = "set them where the worker runs, or take them out of the deployment's `variables`"
        raise ConfigError(f"not set here, and to be handed on to the container: {', '.join(missing)}", hint=hint)
    options = [
        "--init",
        "--read-only",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--tmpfs=/tmp:rw,exec,nosuid,nodev,mode=1777",  # compilers of kernels load what they write there
        f"--user={environment.user or f'{os.getuid()}:{os.getgid()}'}",
        f"--network={environment.network}",
        f"--shm-size={round(environment.shared_memory_gib * _GIB)}",
        *(f"--env={name}" for name in given),
        *(f"--env={name}={value}" for name, value in {**STAGE_VARIABLES, "HOME": "/tmp"}.items()),  # noqa: S108
        *(f"--label={name}={value}" for name, value in request_labels(request).items()),
    ]
    if environment.memory_gib:
        options.append(f"--memory={round(environment.memory_gib * _GIB)}")
    writable = dict.fromkeys(filter(None, (request.work_root, request.store.directory, request.store.cache)))
    for mount in (*(Mount(source=str(path), writable=True) for path in writable), *environment.mounts):
        if mount.writable:
            Path(mount.source).mkdir(parents=True, exist_ok=True)
        bind = f"--mount=type=bind,source={mount.source},target={mount.path or mount.source}"
        options.append(bind if mount.writable else f"{bind},readonly")
    gpus, chosen = environment.gpus, request.gpu_indices
    if environment.runner == "docker":
        if gpus:  # quotes of its own: it reads the value as CSV
            options.append(f"--gpus={gpus}" if chosen is None else f'--gpus="device={",".join(map(str, chosen))}"')
        return options
    options.append("--security-opt=label=disable")  # else SELinux keeps it from what is mounted
    if os.getuid():
        options.append("--userns=keep-id")  # else the worker's user is root in there, and files belong to another
    if gpus:
        every = ["all"] if gpus == "all" else range(gpus)
        options += [f"--device=nvidia.com/gpu={gpu}" for gpu in (every if chosen is None else chosen)]
    return options


def engine_and_image(environment: ContainerEnvironment) -> str:
    """The engine's version, and the image; what `doctor` says.

    Raises:
        ConfigError: There is no such program.
        Transient: The engine does not answer.
    """
    version = asked(environment.runner, "version", "--format={{.Server.Version}}").strip()
    return f"{environment.runner} {version}, image {environment.image or 'of the target'}"
