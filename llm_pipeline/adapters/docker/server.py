"""The target's container on this host, by its digest: no tritonserver needs to be installed here.

The container is found again by its name, by any process of this host, also after a reboot; two stagers of one slot
cannot both have it. Everything it reads is mounted read-only, but for its view of the repository. The process that
speaks OpenAI's API in front of it runs on this host.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_pipeline.adapters.docker.adapter import DockerServer
from llm_pipeline.adapters.docker.engine import Engine, confined, engine_answers, gpu_request, handed_on, how_it_ended
from llm_pipeline.base.digest import sha256_json
from llm_pipeline.base.errors import ConfigError, Transient, Unsupported
from llm_pipeline.base.labels import LABEL_PREFIX, label_value
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.control import Candidate, StagedServer, StagingSlot, await_model, await_no_requests
from llm_pipeline.serving.launch_plan import LaunchPlan, launch_plan
from llm_pipeline.serving.openai_process import openai_failure, openai_has_ended, start_openai, stop_openai
from llm_pipeline.serving.ports import LOOPBACK, loopback_endpoint
from llm_pipeline.serving.server_log import failure_lines
from llm_pipeline.serving.slot_fence import exclusive
from llm_pipeline.serving.triton_runtime import link_repository
from llm_pipeline.serving.triton_server import ServerFailed, SlotBusy

log = get_logger(__name__)

_DIGEST_LABEL = f"{LABEL_PREFIX}repository-digest"
_EXIT_SECONDS = 5
_GRACE_SECONDS = _EXIT_SECONDS + 7
_LOG_LINES = 400


class DockerControl:
    """A container of the engine that Docker's own variables name (`DOCKER_HOST`)."""

    def __init__(self, place: DockerServer, slot: StagingSlot) -> None:
        self._place = place
        self._slot = slot
        self._engine = Engine()

    @property
    def name(self) -> str:
        """The container's name: of this slot, and of no other deployment's on the same engine."""
        return f"llm-staging-{sha256_json(str(self._slot.state.absolute()))[:16]}"

    @property
    def endpoint(self) -> Endpoint:
        """Where its ports are published."""
        return loopback_endpoint(self._place)

    def start(self, candidate: Candidate, *, wait_seconds: float) -> StagedServer:
        with exclusive(self._slot.state), engine_answers():
            if running := self._running():
                return self._same_or_refuse(running, candidate)
            self._remove()
            plan = self._plan(candidate)
            image = self._engine.image(self._image())
            link_repository(candidate.repository, self._view, candidate.links)
            try:
                options = self._options(image.run, plan, candidate)
                container = self._engine.start(options, hint="check image, ports, gpus and user of the staging place")
                start_openai(self._slot.state, self._place, candidate.repository, candidate.digest)
                seconds = await_model(self.endpoint, wait_seconds, lambda: self._refuse_ended(container))
            except BaseException:
                self._remove()
                raise
            log.info("server ready", container=self.name, image=image.recorded, url=self.endpoint.url, seconds=seconds)
            return self._staged(container, ready_seconds=seconds)

    def find(self) -> StagedServer | None:
        with engine_answers():
            container = self._running()
            return self._staged(container) if container else None

    def stop(self, *, drain_seconds: float = 0) -> None:
        with exclusive(self._slot.state), engine_answers():
            if drain_seconds > 0 and self._running():
                await_no_requests(self.endpoint, drain_seconds)
            self._remove()

    @property
    def _view(self) -> Path:
        return self._slot.state.absolute() / "repository"

    def _running(self) -> Any:
        container = self._engine.find(self.name)
        return container if container is not None and container.status == "running" else None

    def _same_or_refuse(self, container: Any, candidate: Candidate) -> StagedServer:
        if container.labels.get(_DIGEST_LABEL) == candidate.digest:
            await_model(self.endpoint, 0.0, lambda: self._refuse_ended(container))
            return self._staged(container)
        raise SlotBusy(
            f"container {self.name} serves repository {container.labels.get(_DIGEST_LABEL, '')[:12]}",
            where=str(self._slot.state),
            hint="stop that server first",
        )

    def _staged(self, container: Any, *, ready_seconds: float = 0.0) -> StagedServer:
        digest = container.labels.get(_DIGEST_LABEL, "")
        return StagedServer(endpoint=self.endpoint, digest=digest, ready_seconds=ready_seconds)

    def _image(self) -> str:
        image = self._place.image or self._slot.target.container
        if image is None:
            where = f"target {self._slot.target.name}"
            raise ConfigError("there is no image to serve with", where=where, hint="name image of the staging place")
        return image

    def _plan(self, candidate: Candidate) -> LaunchPlan:
        """How the server is started, on the same port numbers inside and outside.

        Raises:
            Unsupported: It takes more hosts than this one.
        """
        plan = launch_plan(
            self._slot.target,
            repository=str(self._view),
            ports=self._place.ports,
            digest=candidate.digest,
            drain_seconds=_EXIT_SECONDS,
        )
        if plan.nodes > 1:
            where = f"target {self._slot.target.name}"
            raise Unsupported(f"it takes {plan.nodes} hosts, and a container has one", where=where, hint="use pods")
        return plan

    def _options(self, image: str, plan: LaunchPlan, candidate: Candidate) -> dict[str, Any]:
        """Links of the view lead to the same paths inside."""
        from docker.types import Mount

        place, target = self._place, self._slot.target
        read = dict.fromkeys(path.absolute() for path in (candidate.repository, *candidate.links.values()))
        return {
            "image": image,
            "name": self.name,
            "command": list(plan.command),
            "working_dir": plan.working_directory,
            "environment": {"HOME": "/tmp", **plan.environment, **handed_on(place.variables)},  # noqa: S108 - the container's
            "labels": {
                "app.kubernetes.io/managed-by": "llm-pipeline",
                f"{LABEL_PREFIX}target": label_value(target.name),
                _DIGEST_LABEL: candidate.digest,
            },
            "ports": {f"{port}/tcp": (LOOPBACK, port) for port in (place.http, place.grpc, place.metrics)},
            **confined(
                place.user,
                network="bridge",
                shared_memory_gib=plan.shared_memory_gib,
                memory_gib=place.memory_gib,
            ),
            "mounts": [
                Mount(str(self._view), str(self._view), type="bind"),
                *(Mount(str(path), str(path), type="bind", read_only=True) for path in read),
            ],
            "device_requests": [] if target.accelerator == "cpu" else gpu_request(-1, place.gpus),
        }

    def _refuse_ended(self, container: Any) -> None:
        if openai_has_ended(self._slot.state):
            raise ServerFailed(f"the process that speaks OpenAI's API ended:\n{openai_failure(self._slot.state)}")
        container.reload()
        if container.status in ("created", "running", "restarting"):
            return
        path = self._slot.state / "server.log"
        path.write_bytes(container.logs(tail=_LOG_LINES))
        raise ServerFailed(
            f"the server ended while it started ({how_it_ended(container)}):\n{failure_lines(path)}",
            where=f"container {self.name}",
            hint=f"the end of its log is {path}",
        )

    def _remove(self) -> None:
        """Its processes, its shared memory and its hold on GPUs end with the container."""
        stop_openai(self._slot.state)
        self._engine.remove(self.name, grace_seconds=_GRACE_SECONDS)
        if self._engine.find(self.name) is not None:
            raise Transient("the container is not gone yet", where=f"container {self.name}", hint="try again")
