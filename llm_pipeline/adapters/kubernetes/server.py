"""Pods of a cluster: the manifests of a release, applied under a name of its own, and deleted after the run.

Names follow from the release config and the target, so any worker finds and deletes what another one made. Who creates
the workload has it: a second candidate of the same release config and target is refused, and waits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from llm_pipeline.adapters.kubernetes.adapter import KubernetesServer
from llm_pipeline.adapters.kubernetes.api import Cluster, Json
from llm_pipeline.adapters.kubernetes.state import is_deleted, name_of, statuses, waits_in_vain
from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.base.labels import LABEL_PREFIX
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.control import Candidate, StagedServer, StagingSlot, endpoint_of
from llm_pipeline.serving.endpoint_access import await_model, await_no_requests
from llm_pipeline.serving.kubernetes_manifests import (
    INSTANCE_LABEL,
    render_manifests,
    staging_name,
    workload_endpoint,
    workload_name,
)
from llm_pipeline.serving.launch_plan import nodes_of
from llm_pipeline.serving.server_log import telling_lines
from llm_pipeline.serving.triton_server import ServerFailed, SlotBusy

NEEDS = (
    "create, get and delete Deployments (LeaderWorkerSets for servers over several nodes) and Services; "
    "list Pods; get pods/log"
)
_TAIL = 200

log = get_logger(__name__)

_DIGEST_ANNOTATION = f"{LABEL_PREFIX}repository-digest"
_APPLIED = ("Deployment", "LeaderWorkerSet", "Service")
_POLL_SECONDS = 0.5
_ENDING_SECONDS = 120.0
_SHOWN_LINES = 25


class KubernetesControl:
    """A Deployment, or a LeaderWorkerSet for several nodes, of one server, and its Service."""

    def __init__(self, place: KubernetesServer, slot: StagingSlot) -> None:
        self._place = place
        self._slot = slot
        self._kind = "LeaderWorkerSet" if nodes_of(slot.target) > 1 else "Deployment"
        name = staging_name(slot.release_name)
        self._workload = workload_name(name, slot.target.name)
        self._service = workload_endpoint(name, slot.target.name)
        self._where = f"{self._kind} {self._workload}"
        self._opened: Cluster | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Where the Service is reached."""
        slot = self._slot
        return endpoint_of(self._place, release_name=slot.release_name, target_name=slot.target.name)

    def start(self, candidate: Candidate, *, wait_seconds: float) -> StagedServer:
        """Starts the server; pods fetch weights first, so they may take `startup_minutes` if that is longer."""
        workload, *others = self._manifests(candidate)
        self._take(candidate)
        started, seconds = time.monotonic(), max(wait_seconds, 60.0 * self._place.manifests.startup_minutes)
        if not self._cluster().create(workload):
            self._take(candidate)  # another worker was faster
        try:
            for manifest in others:
                self._cluster().create(manifest)
            self._await_ready(started + seconds)
            await_model(self.endpoint, max(1.0, started + seconds - time.monotonic()), self._refuse_failed)
        except BaseException:
            self._delete()
            raise
        ready = round(time.monotonic() - started, 3)
        log.info("server ready", workload=self._workload, url=self.endpoint.url, seconds=ready)
        return StagedServer(endpoint=self.endpoint, digest=candidate.digest, ready_seconds=ready)

    def find(self) -> StagedServer | None:
        workload = self._cluster().read(self._kind, self._workload)
        if workload is None or is_deleted(workload):
            return None
        return StagedServer(endpoint=self.endpoint, digest=_digest_of(workload))

    def stop(self, *, drain_seconds: float = 0) -> None:
        if drain_seconds > 0 and self.find():
            await_no_requests(self.endpoint, drain_seconds)
        self._delete()

    def _cluster(self) -> Cluster:
        if self._opened is None:
            self._opened = Cluster(self._place.manifests.namespace, self._place.context, NEEDS)
        return self._opened

    def _manifests(self, candidate: Candidate) -> Iterator[Json]:
        """One server and no autoscaler; monitors and disruption budgets are for production."""
        if candidate.release is None:
            raise ConfigError("pods need a release's artifacts by name", where=self._where)
        release = candidate.release.model_copy(update={"name": staging_name(self._slot.release_name)})
        image = self._place.manifests.image or release.target.container
        if image and "@" not in image:
            log.warning("the image is named by a tag, which may move: name its digest", image=image)
        alone = {"minimum_replicas": 1, "maximum_replicas": 1, "autoscaler": "none"}
        options = self._place.manifests.model_copy(update=alone)
        for manifest in render_manifests(release, options, endpoint_seconds=1).values():
            if manifest["kind"] in _APPLIED:
                yield manifest

    def _take(self, candidate: Candidate) -> None:
        """Make sure that the name is free, or that what has it serves the candidate."""
        workload = self._cluster().read(self._kind, self._workload)
        if workload is None:
            return
        if is_deleted(workload):
            self._delete()
        elif _digest_of(workload) != candidate.digest:
            raise SlotBusy(
                f"the workload serves repository {_digest_of(workload)[:12]}",
                where=self._where,
                hint="stop that server first",
            )

    def _await_ready(self, deadline: float) -> None:
        while True:
            workload = self._cluster().read(self._kind, self._workload)
            if workload is None:
                raise Transient("somebody deleted it while it started", where=self._where, hint="run the stage again")
            if (workload.get("status") or {}).get("readyReplicas"):
                return
            self._refuse_failed()
            if time.monotonic() > deadline:
                pods = self._cluster().list("Pod", self._labels)
                problem = waits_in_vain(pods[-1] if pods else None, overdue=True)
                if isinstance(problem, ConfigError):
                    raise problem
                what = problem.message if problem else "its pod runs, and is not ready"
                hint = "see kubectl describe pods; raise startup_minutes of the manifests, if it only needs longer"
                raise Transient(f"the server was not ready in time: {what}", where=self._where, hint=hint)
            time.sleep(_POLL_SECONDS)

    @property
    def _labels(self) -> dict[str, str]:
        return {INSTANCE_LABEL: self._workload}

    def _refuse_failed(self) -> None:
        """Raise when a container has ended badly: the cluster would start it again and again."""
        for pod in self._cluster().list("Pod", self._labels):
            for status in statuses(pod) if not is_deleted(pod) else ():
                restarted = (status.get("lastState") or {}).get("terminated")
                ended = restarted or (status.get("state") or {}).get("terminated")
                if ended and ended["exitCode"]:
                    raise self._failure(name_of(pod), status["name"], ended, previous=restarted is not None)

    def _failure(self, pod: str, container: str, ended: Json, *, previous: bool) -> ServerFailed:
        """How a container ended, with the end of its log; of its run before, if it was started again."""
        before = {"previous": "true"} if previous else {}
        text = self._cluster().log(pod, container, tailLines=str(_TAIL), **before)
        lines = telling_lines(text) if container == "server" else "\n".join(text.splitlines()[-_SHOWN_LINES:])
        return ServerFailed(
            f"container {container} ended while the server started: {ended.get('reason')} "
            f"(exit code {ended['exitCode']}):\n{lines or '(no log)'}",
            where=f"pod {pod}",
            hint="raise memory_gib of the manifests" if ended.get("reason") == "OOMKilled" else "see its last lines",
        )

    def _delete(self) -> None:
        self._cluster().delete("Service", self._service)
        seconds = _ENDING_SECONDS + self._place.manifests.drain_seconds
        self._cluster().remove(self._kind, self._workload, self._labels, seconds)


def _digest_of(workload: Json) -> str:
    return str((workload["metadata"].get("annotations") or {}).get(_DIGEST_ANNOTATION, ""))


def probe(place: KubernetesServer) -> str:
    """How many pods the namespace has; what `doctor` says of it."""
    namespace = place.manifests.namespace
    pods = Cluster(namespace, place.context, NEEDS).list("Pod")
    return f"namespace {namespace} answers and has {len(pods)} pods"


def service_endpoint(place: KubernetesServer, release_name: str, target_name: str) -> Endpoint:
    """Its Service, by a name that is resolved within the cluster."""
    ports = place.manifests.ports
    host = f"{workload_endpoint(staging_name(release_name), target_name)}.{place.manifests.namespace}.svc"
    return Endpoint(url=f"http://{host}:{ports.openai}", metrics_url=f"http://{host}:{ports.metrics}/metrics")
