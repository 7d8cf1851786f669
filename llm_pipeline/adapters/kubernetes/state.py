"""What the status of a Job and its pod means: still waiting, in vain, or ended, and how. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from llm_pipeline.adapters.kubernetes.api import Json
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


def name_of(document: Json) -> str:
    """The name of an object."""
    return str(document["metadata"]["name"])


def created_at(document: Json) -> datetime:
    """When an object was created."""
    return datetime.fromisoformat(document["metadata"]["creationTimestamp"])


def is_deleted(document: Json) -> bool:
    """Whether an object was deleted, and waits for what it owns to end."""
    return "deletionTimestamp" in document["metadata"]


def job_has_ended(job: Json) -> bool:
    """Whether a Job has succeeded or failed: no pod of it runs any more."""
    return bool(_conditions(job).keys() & {"Complete", "Failed"})


def _conditions(document: Json) -> dict[str, Json]:
    found = document.get("status", {}).get("conditions") or ()
    return {one["type"]: one for one in found if one["status"] == "True"}


def statuses(pod: Json) -> list[Json]:
    """The statuses of a pod's containers, those of its init containers first."""
    status = pod.get("status", {})
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def has_ended(pod: Json) -> bool:
    """Whether none of a pod's containers runs, or will."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def has_started(pod: Json) -> bool:
    """Whether a pod's container runs or ran; not while an init container waits."""
    states = [one.get("state") or {} for one in statuses(pod)]
    return (
        bool(states) and bool(states[-1].keys() & {"running", "terminated"}) and not any("waiting" in s for s in states)
    )


def is_lost(pod: Json, now: datetime) -> bool:
    """Whether it should have ended long ago: its node does not answer, so it is unknown whether it still runs."""
    if has_ended(pod) or not is_deleted(pod):
        return False
    return now - datetime.fromisoformat(pod["metadata"]["deletionTimestamp"]) > _LOST_AFTER


def waits_in_vain(pod: Json | None, *, overdue: bool, events: tuple[str, ...] = ()) -> PipelineError | None:
    """Why a pod that has not started never will; None while it may.

    Args:
        pod: The Job's pod; None while there is none.
        overdue: Whether the environment's `start_timeout_minutes` have passed.
        events: What the cluster says about the Job, when there is no pod.
    """
    if pod is not None and has_started(pod):
        return None
    waiting = [one["state"]["waiting"] for one in statuses(pod or {}) if "waiting" in (one.get("state") or {})]
    reason, message = (waiting[0].get("reason") or "", waiting[0].get("message") or "") if waiting else ("", "")
    if not overdue and reason not in _NEVER_STARTS:
        return None
    if reason in _WRONG_CONFIGURATION:
        return ConfigError(f"the pod cannot start: {reason}: {message}", hint=_WRONG_CONFIGURATION[reason])
    if pod is None:
        said = "; ".join(events) or "the cluster says nothing about it"
        return Transient(f"no pod was created: {said}", hint="check the namespace's quota, and the service account")
    for condition in pod.get("status", {}).get("conditions") or ():
        if (condition["type"], condition["status"]) == ("PodScheduled", "False"):
            hint = "wait for a free node, or check node_selector, tolerations, gpus and memory_gib"
            return Transient(f"no node takes the pod: {condition.get('message') or condition.get('reason')}", hint=hint)
    hint = "raise start_timeout_minutes, if the image is large"
    return Transient(f"the pod did not start in time: {reason or 'it waits'} {message}".rstrip(), hint=hint)


def ending(job: Json | None, pod: Json | None, now: datetime) -> tuple[str, str]:
    """How a stage ended that left no outcome, and what to do about it."""
    failure = _conditions(job or {}).get("Failed")
    if failure and failure.get("reason") == _OUT_OF_TIME:  # the Job's controller has removed the pod
        return f"{_OUT_OF_TIME}: {failure.get('message')}", _ADVICE[_OUT_OF_TIME]
    if pod is None:
        what = "pod is gone: its node was lost, or it was deleted" if job else "Job is gone: somebody deleted it"
        return f"its {what}", _AGAIN
    node, status = pod["spec"].get("nodeName", ""), pod["status"]
    if is_lost(pod, now):
        return f"its node {node} does not answer", "delete the node, or the pod by force; then run it again"
    terminated = next(((one.get("state") or {}).get("terminated") for one in reversed(statuses(pod))), None) or {}
    reason = status.get("reason") or terminated.get("reason") or ""
    message = status.get("message") or terminated.get("message")
    code = f" (exit code {terminated['exitCode']})" if "exitCode" in terminated else ""
    said = f": {message}" if message else ""
    return f"{reason or 'it ended'}{code}{said} on node {node}", _ADVICE.get(reason, _AGAIN)
