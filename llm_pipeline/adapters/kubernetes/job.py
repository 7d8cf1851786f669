"""The Kubernetes Job of a stage, as the manifest that is sent; pure, from configuration and request only.

One pod, never restarted: a retry is another Job, with the next number. The request travels in an annotation of the
pod, which a downward-API volume gives back as a file, so a Job is one object and never half made. The pod meets the
"restricted" Pod Security Standard. The manifest itself is `templates/job.yaml.jinja`.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from llm_pipeline.adapters.kubernetes.adapter import KubernetesEnvironment
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.labels import LABEL_PREFIX
from llm_pipeline.base.yaml_template import render_yaml
from llm_pipeline.config.environment import ClaimMount
from llm_pipeline.release.contract import StageRequest
from llm_pipeline.release.execute import IN_STORE
from llm_pipeline.release.time_limit import GRACE_SECONDS
from llm_pipeline.runners.runner import STAGE_VARIABLES, Job
from llm_pipeline.runners.shared import request_labels
from llm_pipeline.store.provenance import CONTAINER_VARIABLE

DIGEST_ANNOTATION = f"{LABEL_PREFIX}request-digest"
WORK_LABEL = f"{LABEL_PREFIX}work"
JOB_LABEL = f"{LABEL_PREFIX}job"
"""The Job of a pod: Kubernetes' own label for it has two names, and clusters before 1.27 know the older one only."""

CONTAINER = "stage"
_LARGEST_REQUEST_BYTES = 200 * 1024
"""All annotations of an object together may have 256 KiB (kubernetes.io/docs/concepts/overview/.../annotations)."""


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
    gpus = {"nvidia.com/gpu": str(environment.gpus)} if environment.gpus else {}
    limits = gpus | ({"memory": _mebibytes(environment.memory_gib)} if environment.memory_gib else {})
    requests = limits | ({"cpu": f"{round(environment.cpu * 1000)}m"} if environment.cpu else {})
    uid, _, gid = (environment.user or "").partition(":")
    # A little more than the stage's own limit, which ends it with a better word, and the wait for a node.
    longest = request.time_limit.longest_seconds + 2 * GRACE_SECONDS
    secrets_left_out = dict.fromkeys(withheld if environment.secrets else (), "")
    values = {
        "environment": environment,
        "image": image,
        "job": job,
        "request": request,
        "request_text": text,
        "labels": request_labels(request),
        "deadline_seconds": round(60 * environment.start_timeout_minutes + longest),
        "user": int(uid or 0),
        "group": int(gid or uid or 0),
        "tolerations": [toleration.of_pod() for toleration in environment.tolerations],
        "in_store": IN_STORE,
        "variables": secrets_left_out | STAGE_VARIABLES | {"HOME": "/tmp", CONTAINER_VARIABLE: image},  # noqa: S108
        "resources": {kind: found for kind, found in (("limits", limits), ("requests", requests)) if found},
        "own_directories": _own_directories(environment.claims, request),
        "shared_memory": _mebibytes(environment.shared_memory_gib),
    }
    return render_yaml("llm_pipeline.adapters.kubernetes", "templates", "job.yaml.jinja", values)


def _own_directories(claims: tuple[ClaimMount, ...], request: StageRequest) -> dict[str, str]:
    """Directories that the stage writes to and that no claim offers: they become the pod's own."""
    store = request.store.directory
    if store and not _covered(str(store), claims):
        hint = "use a store in S3, or a writable claim at the same path"
        raise ConfigError(f"pods do not reach the store {request.store.uri}", hint=hint)
    directories = {} if _covered(request.work_root, claims) else {"work": request.work_root}
    cache = request.store.cache
    if cache and not _covered(cache, claims) and not PurePosixPath(cache).is_relative_to(request.work_root):
        directories["cache"] = cache
    return directories


def _covered(path: str, claims: tuple[ClaimMount, ...]) -> bool:
    return any(claim.writable and PurePosixPath(path).is_relative_to(claim.path) for claim in claims)


def _mebibytes(gibibytes: float) -> str:
    return f"{round(gibibytes * 1024)}Mi"
