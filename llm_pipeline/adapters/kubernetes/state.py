"""What the status of a Job and its pod means: still waiting, in vain, or ended, and how. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from llm_pipeline.base.errors import ConfigError, PipelineError, Transient

_NEVER_STARTS = ("InvalidImageName", "ErrImageNeverPull")
_WRONG_CONFIGURATION = {
    "ImagePullBackOff": "check the image's name, and the service account's imagePullSecrets",
    "ErrImagePull": "check the image's name, and the service account's imagePullSecrets",
    "InvalidImageName": "correct the image's name",
    "ErrImageNeverPull": "put the image on the node, or in a registry",
    "CreateContainerConfigError": "check secrets and user: a secret is missing, or the image runs as root",
    "CreateContainerError": "check image, python and claims",
    "RunContainerError": "check image and python",
}
_OUT_OF_TIME = "DeadlineExceeded"
_ADVICE = {
    "OOMKilled": "raise memory_gib of the environment (shared memory counts, too)",
    "Evicted": "its node ran out of something: give the environment memory_gib, and claims for large files",
    _OUT_OF_TIME: "raise longest_stage_hours of the policy, if the stage makes progress: finished work is kept",
    "StartError": "check image and python of the environment",
    "ContainerCannotRun": "check image and python of the environment",
}
_LOST_AFTER = timedelta(minutes=5)
_AGAIN = "run it again: finished work is kept"


@dataclass(frozen=True)
class JobState:
    """A Job, as far as the runner reads it.

    Attributes:
        request_digest: What it was submitted for; empty for somebody else's Job.
        ended: It has succeeded or failed: no pod of it runs any more.
        deleting: It was deleted, and waits for its pod to end.
        ready: Pods of it that run.
        reason: Why it failed, in one word of Kubernetes.
        message: The same in more words.
    """

    name: str
    request_digest: str
    created_at: datetime
    ended: bool
    deleting: bool
    ready: bool
    reason: str
    message: str


@dataclass(frozen=True)
class PodState:
    """A Job's pod, as far as the runner reads it.

    Attributes:
        ended: None of its containers runs, or will.
        started: Its container runs or ran.
        waiting: Why its container does not run yet, in one word and in more.
        unscheduled: Why no node takes it; empty when one did.
        reason: Why it failed: the container's reason, or the pod's own.
        message: The same in more words.
        image_id: The image's digest as the node resolved it.
        ends_by: When it is killed at the latest, once it was deleted.
    """

    name: str
    created_at: datetime
    node: str
    ended: bool
    started: bool
    waiting: tuple[str, str]
    unscheduled: str
    reason: str
    message: str
    exit_code: int | None
    image_id: str
    ends_by: datetime | None

    def is_lost(self, now: datetime) -> bool:
        """Whether it should have ended long ago: its node does not answer, so it is unknown whether it still runs."""
        return not self.ended and self.ends_by is not None and now - self.ends_by > _LOST_AFTER


def job_state(job: Any, digest_annotation: str) -> JobState:
    """From the client's `V1Job`."""
    conditions = {c.type: c for c in job.status.conditions or () if c.status == "True"}
    failed = conditions.get("Failed")
    return JobState(
        name=job.metadata.name,
        request_digest=(job.metadata.annotations or {}).get(digest_annotation, ""),
        created_at=job.metadata.creation_timestamp,
        ended="Complete" in conditions or failed is not None,
        deleting=job.metadata.deletion_timestamp is not None,
        ready=bool(job.status.ready),
        reason=(failed.reason or "") if failed else "",
        message=(failed.message or "") if failed else "",
    )


def pod_state(pod: Any) -> PodState:
    """From the client's `V1Pod`."""
    status = pod.status
    container = status.container_statuses[0] if status.container_statuses else None
    state = container.state if container else None
    waiting = state.waiting if state else None
    terminated = state.terminated if state else None
    refused = [c for c in status.conditions or () if c.type == "PodScheduled" and c.status == "False"]
    return PodState(
        name=pod.metadata.name,
        created_at=pod.metadata.creation_timestamp,
        node=pod.spec.node_name or "",
        ended=status.phase in ("Succeeded", "Failed"),
        started=bool(terminated or (state and state.running)),
        waiting=(waiting.reason or "", waiting.message or "") if waiting else ("", ""),
        unscheduled=(refused[0].message or refused[0].reason or "") if refused else "",
        reason=status.reason or (terminated.reason if terminated else "") or "",
        message=status.message or (terminated.message if terminated else "") or "",
        exit_code=terminated.exit_code if terminated else None,
        image_id=(container.image_id or "") if container else "",
        ends_by=pod.metadata.deletion_timestamp,
    )


def waits_in_vain(pod: PodState | None, *, overdue: bool, events: tuple[str, ...] = ()) -> PipelineError | None:
    """Why a pod that has not started never will; None while it may.

    Args:
        pod: The Job's pod; None while there is none.
        overdue: Whether the environment's `start_timeout_minutes` have passed.
        events: What the cluster says about the Job, when there is no pod.
    """
    if pod is not None and pod.started:
        return None
    reason, message = pod.waiting if pod else ("", "")
    if not overdue and reason not in _NEVER_STARTS:
        return None
    if reason in _WRONG_CONFIGURATION:
        return ConfigError(f"the pod cannot start: {reason}: {message}", hint=_WRONG_CONFIGURATION[reason])
    if pod is None:
        said = "; ".join(events) or "the cluster says nothing about it"
        return Transient(f"no pod was created: {said}", hint="check the namespace's quota, and the service account")
    if pod.unscheduled:
        return Transient(
            f"no node takes the pod: {pod.unscheduled}",
            hint="wait for a free node, or check node_selector, tolerations, gpus and memory_gib",
        )
    return Transient(
        f"the pod did not start in time: {reason or 'it waits'} {message}".rstrip(),
        hint="raise start_timeout_minutes, if the image is large",
    )


def ending(job: JobState | None, pod: PodState | None, now: datetime) -> tuple[str, str]:
    """How a stage ended that left no outcome, and what to do about it."""
    if job is not None and job.reason == _OUT_OF_TIME:  # the Job's controller has removed the pod
        return f"{_OUT_OF_TIME}: {job.message}", _ADVICE[_OUT_OF_TIME]
    if pod is None:
        what = "pod is gone: its node was lost, or it was deleted" if job else "Job is gone: somebody deleted it"
        return f"its {what}", _AGAIN
    if pod.is_lost(now):
        return f"its node {pod.node} does not answer", "delete the node, or the pod by force; then run it again"
    code = "" if pod.exit_code is None else f" (exit code {pod.exit_code})"
    message = f": {pod.message}" if pod.message else ""
    return f"{pod.reason or 'it ended'}{code}{message} on node {pod.node}", _ADVICE.get(pod.reason, _AGAIN)
