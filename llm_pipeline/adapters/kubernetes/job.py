"""The Kubernetes Job of a stage, as the manifest that is sent; pure, from configuration and request only.

One pod, never restarted: a retry is another Job, with the next number. The request travels in an annotation of the
pod, which a downward-API volume gives back as a file, so a Job is one object and never half made. The pod meets the
"restricted" Pod Security Standard.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from llm_pipeline.adapters.kubernetes.adapter import KubernetesEnvironment
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.labels import LABEL_PREFIX
from llm_pipeline.config.environment import ClaimMount
from llm_pipeline.release.contract import StageRequest
from llm_pipeline.release.process import IN_STORE
from llm_pipeline.release.time_limit import GRACE_SECONDS
from llm_pipeline.runners.runner import STAGE_VARIABLES, Job
from llm_pipeline.runners.shared import request_labels
from llm_pipeline.store.provenance import CONTAINER_VARIABLE

DIGEST_ANNOTATION = f"{LABEL_PREFIX}request-digest"
REQUEST_ANNOTATION = f"{LABEL_PREFIX}request"
WORK_LABEL = f"{LABEL_PREFIX}work"
JOB_LABEL = f"{LABEL_PREFIX}job"
"""The Job of a pod: Kubernetes' own label for it has two names, and clusters before 1.27 know the older one only."""

CONTAINER = "stage"
GPU_RESOURCE = "nvidia.com/gpu"

_REQUEST_DIRECTORY = "/var/run/llm-pipeline"
_GRACE_SECONDS = 30
_KEPT_SECONDS = 7 * 24 * 3600
_LARGEST_REQUEST_BYTES = 200 * 1024
"""All annotations of an object together may have 256 KiB (kubernetes.io/docs/concepts/overview/.../annotations)."""
_CONFINED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
_LEFT_ALONE = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
"""A node is not emptied for tidiness while a build of hours runs on it."""


def job_manifest(
    environment: KubernetesEnvironment,
    image: str,
    request: StageRequest,
    job: Job,
    withheld: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """A `batch/v1` Job.

    The pod gets the keys of the environment's Secrets, but for the `withheld` ones, which this stage does not need:
    they are empty there, as what a container says of a variable counts more than its Secrets.

    Raises:
        ConfigError: Pods would not reach the store, or the request is too large.
    """
    text = request.model_dump_json()
    if len(text.encode()) > _LARGEST_REQUEST_BYTES:
        raise ConfigError(
            f"the request of stage {request.stage} has more than {_LARGEST_REQUEST_BYTES} bytes: too much for a pod",
            hint="run this stage as a process or in a container",
        )
    labels = request_labels(request)
    digest = {DIGEST_ANNOTATION: job.request_digest}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job.name, "labels": labels, "annotations": digest},
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            "activeDeadlineSeconds": _deadline_seconds(environment, request),
            "template": {
                "metadata": {
                    "labels": labels | {JOB_LABEL: job.name},
                    "annotations": digest | _LEFT_ALONE | {REQUEST_ANNOTATION: text},
                },
                "spec": _pod(environment, image, request, job, withheld if environment.secrets else frozenset()),
            },
        },
    }


def _deadline_seconds(environment: KubernetesEnvironment, request: StageRequest) -> int:
    """A little more than the stage's own limit, which ends it with a better word, and the wait for a node."""
    longest = request.time_limit.longest_seconds + 2 * GRACE_SECONDS
    return round(60 * environment.start_timeout_minutes + longest)


def _pod(
    environment: KubernetesEnvironment, image: str, request: StageRequest, job: Job, withheld: frozenset[str]
) -> dict[str, Any]:
    volumes, mounts = _volumes(environment, request)
    variables = dict.fromkeys(withheld, "") | _variables(image)
    optional = {
        "nodeSelector": environment.node_selector,
        "tolerations": [toleration.model_dump(exclude_none=True) for toleration in environment.tolerations],
        "serviceAccountName": environment.service_account,
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _pod_identity(environment.user),
        "volumes": volumes,
        "containers": [
            {
                "name": CONTAINER,
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": _command(environment.python, request, job),
                "env": [{"name": name, "value": value} for name, value in sorted(variables.items())],
                "envFrom": [{"secretRef": {"name": secret}} for secret in environment.secrets],
                "resources": _resources(environment),
                "volumeMounts": mounts,
                "securityContext": _CONFINED,
            }
        ],
        **{name: value for name, value in optional.items() if value},
    }


def _command(python: str, request: StageRequest, job: Job) -> list[str]:
    command = [python, "-m", "llm_pipeline", "stage", "run", request.stage]
    return [*command, "--request", f"{_REQUEST_DIRECTORY}/request.json", "--result", f"{IN_STORE}{job.name}"]


def _variables(image: str) -> dict[str, str]:
    return STAGE_VARIABLES | {"HOME": "/tmp", CONTAINER_VARIABLE: image}  # noqa: S108 - the pod's own


def _volumes(
    environment: KubernetesEnvironment, request: StageRequest
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes and their mounts; a directory that no claim covers lasts as long as the pod."""
    shared_memory = {"medium": "Memory", "sizeLimit": _mebibytes(environment.shared_memory_gib)}
    annotation = {"path": "request.json", "fieldRef": {"fieldPath": f"metadata.annotations['{REQUEST_ANNOTATION}']"}}
    sources: list[tuple[str, dict[str, Any], str, bool]] = [
        ("request", {"downwardAPI": {"items": [annotation]}}, _REQUEST_DIRECTORY, False),
        ("tmp", {"emptyDir": {}}, "/tmp", True),  # noqa: S108
        ("shared-memory", {"emptyDir": shared_memory}, "/dev/shm", True),  # noqa: S108
    ]
    for number, claim in enumerate(environment.claims):
        source = {"persistentVolumeClaim": {"claimName": claim.claim, "readOnly": not claim.writable}}
        sources.append((f"claim-{number}", source, claim.path, claim.writable))
    for name, path in _own_directories(environment.claims, request).items():
        sources.append((name, {"emptyDir": {}}, path, True))
    volumes = [{"name": name, **source} for name, source, _, _ in sources]
    mounts = [{"name": name, "mountPath": path, "readOnly": not writable} for name, _, path, writable in sources]
    return volumes, mounts


def _own_directories(claims: tuple[ClaimMount, ...], request: StageRequest) -> dict[str, str]:
    """Directories that the stage writes to and that no claim offers: they become the pod's own."""
    store = request.store.directory
    if store and not _covered(str(store), claims):
        raise ConfigError(
            f"pods do not reach the store {request.store.uri}",
            hint="use a store in S3, or a writable claim at the same path",
        )
    directories = {} if _covered(request.work_root, claims) else {"work": request.work_root}
    cache = request.store.cache
    if cache and not _covered(cache, claims) and not PurePosixPath(cache).is_relative_to(request.work_root):
        directories["cache"] = cache
    return directories


def _covered(path: str, claims: tuple[ClaimMount, ...]) -> bool:
    return any(claim.writable and PurePosixPath(path).is_relative_to(claim.path) for claim in claims)


def _pod_identity(user: str | None) -> dict[str, Any]:
    """The security context of the pod: `uid:gid`, or the image's user."""
    ids: dict[str, Any] = {}
    if user is not None:
        uid, _, gid = user.partition(":")
        ids = {"runAsUser": int(uid), "runAsGroup": int(gid or uid), "fsGroup": int(gid or uid)}
        ids["fsGroupChangePolicy"] = "OnRootMismatch"
    return {"runAsNonRoot": True, **ids, "seccompProfile": {"type": "RuntimeDefault"}}


def _resources(environment: KubernetesEnvironment) -> dict[str, dict[str, str]]:
    """What the container may take: GPUs and memory for certain, processors at least."""
    gpus = {GPU_RESOURCE: str(environment.gpus)} if environment.gpus else {}
    limits = gpus | ({"memory": _mebibytes(environment.memory_gib)} if environment.memory_gib else {})
    requests = limits | ({"cpu": f"{round(environment.cpu * 1000)}m"} if environment.cpu else {})
    return {name: value for name, value in (("limits", limits), ("requests", requests)) if value}


def _mebibytes(gibibytes: float) -> str:
    return f"{round(gibibytes * 1024)}Mi"
