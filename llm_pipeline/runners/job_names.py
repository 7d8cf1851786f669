"""Names of containers and Kubernetes Jobs: the same request has the same name, wherever it is submitted from."""

from __future__ import annotations

import re

from llm_pipeline.base.digest import sha256_json
from llm_pipeline.base.labels import LABEL_PREFIX, label_value
from llm_pipeline.release.contract import StageRequest

_READABLE_LENGTH = 40
_HASH_LENGTH = 10


def work_hash(request: StageRequest) -> str:
    """What is worked on, whatever its configuration: at any time only one job should."""
    return sha256_json([request.release_id, request.stage, request.subject])[:16]


def job_base_name(request: StageRequest, request_digest: str, place: str = "") -> str:
    """Name of a request's jobs without the number of the attempt: a DNS label of at most 51 characters.

    Args:
        request: Gives the readable part.
        request_digest: Tells requests apart that would read alike.
        place: Tells apart what else may share an engine: another deployment's work directory.
    """
    readable = re.sub(r"[^a-z0-9]+", "-", f"llm-{request.stage}-{request.subject}".lower())[:_READABLE_LENGTH]
    exact = sha256_json([work_hash(request), request_digest, place])[:_HASH_LENGTH]
    return f"{readable.strip('-')}-{exact}"


def job_name_prefix(stage: str) -> str:
    """What the names of a stage's jobs begin with."""
    return f"llm-{stage.replace('_', '-')}-"


def request_labels(request: StageRequest) -> dict[str, str]:
    """Labels that tell a person what a container or a Job works on."""
    labels = {
        "app.kubernetes.io/name": "llm-pipeline",
        "app.kubernetes.io/component": "stage",
        "app.kubernetes.io/managed-by": "llm-pipeline",
        f"{LABEL_PREFIX}release": label_value(request.release_id),
        f"{LABEL_PREFIX}stage": label_value(request.stage),
        f"{LABEL_PREFIX}work": work_hash(request),
    }
    return labels | ({f"{LABEL_PREFIX}subject": label_value(request.subject)} if request.subject else {})
