"""The Kubernetes runner: a stage as a Job of one pod.

A Job's name follows from its request and the number of the attempt, so submitting twice gives one Job. Pods may share
no file with the worker: the outcome is a document of the store, and a stage has succeeded only if that says so.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from llm_pipeline.adapters.kubernetes.adapter import KubernetesEnvironment
from llm_pipeline.adapters.kubernetes.api import Cluster, Json
from llm_pipeline.adapters.kubernetes.job import CONTAINER, DIGEST_ANNOTATION, JOB_LABEL, WORK_LABEL, job_manifest
from llm_pipeline.adapters.kubernetes.state import (
    created_at,
    ending,
    has_ended,
    has_started,
    is_deleted,
    is_lost,
    job_has_ended,
    name_of,
    waits_in_vain,
)
from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.base.errors import PipelineError, StageCrashed, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.release.contract import OUTCOME, StageFailure, StageRequest, StageResult, result_of
from llm_pipeline.release.execute import job_outcome_name, publishes
from llm_pipeline.runners.runner import Job, Placement
from llm_pipeline.runners.shared import INSTALL_IN_IMAGE, crash, environment_of, image_of, job_base_name, work_hash
from llm_pipeline.runners.stage_environment import withheld_secrets
from llm_pipeline.store import open_store
from llm_pipeline.store.artifact_store import ArtifactStore, Document
from llm_pipeline.store.signed_documents import refusal, replace_document, require_signed

log = get_logger(__name__)

_GONE_AFTER_SECONDS = 90.0
_NEEDS = "create, get, list and delete Jobs; list Pods; get pods/log"
_TAIL = 20
_NUMBER = re.compile(r"-(\d+)(?:\.json)?$")


class KubernetesRunner:
    """Starts stages in pods."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._clusters: dict[str, Cluster] = {}
        self._running_pods: dict[str, str] = {}

    @cached_property
    def _store(self) -> ArtifactStore:
        """Opened at its first use: who only asks whether a Job runs may have no access to the store."""
        return open_store(self._deployment.store)

    @staticmethod
    def probe(environment: KubernetesEnvironment) -> str:
        """What `doctor` says of an environment that works.

        Raises:
            PipelineError: The cluster does not answer, or may not be asked.
        """
        running = Cluster(environment.namespace, environment.context, _NEEDS).list("Job")
        image = environment.image or "of the target"
        return f"namespace {environment.namespace} answers and has {len(running)} Jobs, image {image}"

    def submit(self, request: StageRequest, placement: Placement) -> Job:
        """Start a stage; the same request while its Job still runs, or waits to, gives that job.

        Raises:
            ConfigError: There is no image, the store is out of a pod's reach, or the cluster refuses the Job.
            Transient: The cluster cannot be reached, or an older Job of the stage does not end.
            Unsupported: The Kubernetes client is not installed here.
        """
        environment = environment_of(self._deployment, placement.environment, KubernetesEnvironment)
        image = image_of(self._deployment, environment.image, placement)
        cluster = self._cluster(placement.environment)
        digest = sha256_bytes(request.model_dump_json(indent=1).encode())
        base = job_base_name(request, digest)
        there = cluster.list("Job", {WORK_LABEL: work_hash(request)})
        for state in there:
            job = self._job(placement, request, name_of(state), digest)
            if _digest_of(state) == digest and not is_deleted(state) and self.is_active(job):
                return job
        for state in there:
            if not job_has_ended(state):  # an older configuration of the same stage: superseded
                _stop(cluster, name_of(state))
        name = f"{base}-{self._next_number(base, request, [name_of(state) for state in there])}"
        job = self._job(placement, request, name, digest)
        if "@" not in image:
            log.warning("the image is named by a tag, which may move: name its digest", image=image)
        if cluster.create(job_manifest(environment, image, request, job, withheld_secrets(request, self._deployment))):
            log.info("a Job runs the stage", job=name, namespace=environment.namespace, image=image)
        elif (found := cluster.read("Job", name)) is None or _digest_of(found) != digest:
            raise Transient("a Job of another request has the name", where=name, hint="try again: it will be another")
        return job

    def is_active(self, job: Job) -> bool:
        """Whether the stage's pod runs, or waits to. One that waits in vain is deleted, and its outcome says why.

        Raises:
            Transient: The cluster cannot be reached.
        """
        cluster, now = self._cluster(job.environment), datetime.now(UTC)
        state = cluster.read("Job", job.name)
        if state is None:  # deleted; its pod may still run
            return any(not (has_ended(pod) or is_lost(pod, now)) for pod in _pods(cluster, job.name))
        if job_has_ended(state) or state["status"].get("ready"):
            return not job_has_ended(state)
        pods = _pods(cluster, job.name)
        pod = pods[-1] if pods else None
        if pod and is_lost(pod, now):
            return False
        if is_deleted(state):
            return True
        environment = environment_of(self._deployment, job.environment, KubernetesEnvironment)
        overdue = now - created_at(state) > timedelta(minutes=environment.start_timeout_minutes)
        events = cluster.events(job.name) if overdue and pod is None else ()
        problem = waits_in_vain(pod, overdue=overdue, events=events)
        if problem is not None:
            _stop(cluster, job.name)
            self._record(job, problem)
        return problem is None

    def read_log(self, job: Job, offset: int) -> tuple[list[str], int]:
        """Whole log lines from an offset on, and the offset to go on from; see `lines_after`."""
        cluster = self._cluster(job.environment)
        pod_name = self._running_pods.get(job.name)
        if pod_name is None:
            pods = _pods(cluster, job.name)
            if not pods or not has_started(pods[-1]):
                return [], offset
            pod_name = self._running_pods[job.name] = name_of(pods[-1])
            node, (container, *_) = pods[-1]["spec"].get("nodeName"), pods[-1]["status"]["containerStatuses"]
            log.info("the stage's pod has started", pod=pod_name, node=node, image=container.get("imageID"))
        since = {}
        if offset:  # in whole seconds, rounded down
            since = {"sinceTime": datetime.fromtimestamp(offset // _NANOSECONDS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        return lines_after(cluster.log(pod_name, CONTAINER, timestamps="true", **since), offset)

    def outcome(self, job: Job) -> StageResult:
        """The result of a stage that has ended, from the store.

        Raises:
            StageCrashed: It ended without saying how.
            ConfigError: The image's interpreter does not run this package.
            PipelineError: The error it reported, in its own family.
        """
        if document := self._store.read_document(job.outcome_document):
            try:
                outcome = OUTCOME.validate_python(document.value)
            except ValidationError as error:
                raise StageCrashed("the stage's outcome cannot be understood", where=job.outcome_document) from error
            result = result_of(outcome)
            self._require_signed(job, result, document)
            return result
        cluster = self._cluster(job.environment)
        pods = _pods(cluster, job.name)
        how, advice = ending(cluster.read("Job", job.name), pods[-1] if pods else None, datetime.now(UTC))
        lines = ["(its log is gone with its pod)"]
        if pods:
            tail = cluster.log(name_of(pods[-1]), CONTAINER, timestamps="true", tailLines=str(_TAIL))
            lines, _ = lines_after(tail, 0)
        raise crash(how, lines, where=f"Job {job.name}", again=advice, install=INSTALL_IN_IMAGE)

    def _require_signed(self, job: Job, result: StageResult, document: Document) -> None:
        """Refuse a result that is not signed as its stage does, or is of another stage than the job."""
        if result.stage != job.stage:
            raise refusal(self._store, job.outcome_document, f"it is of stage {result.stage}")
        if publishes(result.stage):
            require_signed(self._store, job.outcome_document, document)

    def cancel(self, job: Job) -> None:
        """Delete the Job and wait until its pod is gone.

        Raises:
            Transient: The pod does not end; its node may be lost.
        """
        _stop(self._cluster(job.environment), job.name)

    def _cluster(self, environment_name: str) -> Cluster:
        if environment_name not in self._clusters:
            environment = environment_of(self._deployment, environment_name, KubernetesEnvironment)
            self._clusters[environment_name] = Cluster(environment.namespace, environment.context, _NEEDS)
        return self._clusters[environment_name]

    def _job(self, placement: Placement, request: StageRequest, name: str, digest: str) -> Job:
        environment = environment_of(self._deployment, placement.environment, KubernetesEnvironment)
        return Job(
            runner="kubernetes",
            environment=placement.environment,
            name=name,
            directory=Path(request.work_root) / "jobs" / request.release_id / name,
            request_digest=digest,
            outcome_document=job_outcome_name(request.release_id, name),
            log_command=f"kubectl logs job/{name}",
            start_seconds=60 * environment.start_timeout_minutes,
            release_id=request.release_id,
            stage=request.stage,
        )

    def _next_number(self, base: str, request: StageRequest, job_names: list[str]) -> int:
        """One that neither a Job has nor an outcome, which outlives its Job and must not be taken for another's."""
        documents = self._store.list_documents(f"releases/{request.release_id}/jobs")
        names = [*job_names, *(document.rpartition("/")[2] for document in documents)]
        ours = [name for name in names if name.startswith(f"{base}-")]
        return max((int(found[1]) for name in ours if (found := _NUMBER.search(name))), default=0) + 1

    def _record(self, job: Job, problem: PipelineError) -> None:
        """Keep why a stage never started as its outcome: whoever asks later gets the same error."""
        if self._store.read_document(job.outcome_document):  # it started while it was being cancelled
            return
        failure = StageFailure(release_id=job.release_id, stage=job.name, subject="", error=problem.to_document())
        replace_document(self._store, job.outcome_document, failure.model_dump(mode="json"))


def _digest_of(job: Json) -> str:
    """What a Job was submitted for; empty for somebody else's."""
    return str((job["metadata"].get("annotations") or {}).get(DIGEST_ANNOTATION, ""))


def _stop(cluster: Cluster, job_name: str) -> None:
    cluster.remove("Job", job_name, {JOB_LABEL: job_name}, _GONE_AFTER_SECONDS)


def _pods(cluster: Cluster, job_name: str) -> list[Json]:
    """The pods of a Job, the newest last; also those that outlive it."""
    return sorted(cluster.list("Pod", {JOB_LABEL: job_name}), key=created_at)


_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z ")
_NANOSECONDS = 10**9


def lines_after(text: str, offset: int) -> tuple[list[str], int]:
    """Whole lines of a log read with time stamps that come after an offset, and the offset to go on from.

    The kubelet stamps every line with nanoseconds and throws the oldest lines away when a log is rotated, so a count
    of bytes would skip or repeat. An offset is the last line's time.
    """
    lines, last = [], offset
    for line in text.split("\n")[:-1]:
        stamp = _STAMP.match(line)
        if stamp is None:  # the API's own remark, not a line of the container
            continue
        seconds = datetime.fromisoformat(f"{stamp[1]}+00:00").timestamp()
        time = int(seconds) * _NANOSECONDS + int((stamp[2] or "").ljust(9, "0"))
        if time > offset:
            lines.append(line[stamp.end() :])
            last = time
    return lines, last
