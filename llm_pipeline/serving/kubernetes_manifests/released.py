"""The artifacts of a release that pods serve on one target, and the pods' names, labels and annotations."""

from __future__ import annotations

import re
from typing import Any

from llm_pipeline.base.digest import sha256_json
from llm_pipeline.base.labels import LABEL_PREFIX, label_value
from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.config.kubernetes_serving import ServingManifestOptions
from llm_pipeline.config.target import Target

INSTANCE_LABEL = "app.kubernetes.io/instance"
"""Prometheus has it on every series, as `app_kubernetes_io_instance`."""

_LONGEST_NAME = 40
"""LeaderWorkerSets and autoscalers append to it, and labels take 63 characters."""


def workload_name(name: str, target_name: str) -> str:
    """Name of the workload of a release config on a target: a DNS label."""
    exact = f"{name}-{target_name}"
    readable = re.sub(r"[^a-z0-9]+", "-", f"llm-{exact}").strip("-")
    if len(readable) <= _LONGEST_NAME:
        return readable
    return f"{readable[: _LONGEST_NAME - 9].strip('-')}-{sha256_json(exact)[:8]}"


def workload_endpoint(name: str, target_name: str) -> str:
    """Name of the workload's Service; a LeaderWorkerSet uses its own name for a headless one."""
    return f"{workload_name(name, target_name)}-endpoint"


def staging_name(release_name: str) -> str:
    """Name of a release config while it is staged, so that its pods are not the production pods."""
    return f"{release_name}-staging"


class ServedRelease(Frozen):
    """A release on one target, ready to be served.

    Attributes:
        name: The release config's name.
        release_id: The release.
        model_id: The model on the hub.
        target: What it was built for.
        repository: Its model repository.
        engine: The engine in it.
        checkpoint: The checkpoint that the engine was made from, or links to.
    """

    name: str
    release_id: str
    model_id: str
    target: Target
    repository: ArtifactRef
    engine: ArtifactRef
    checkpoint: ArtifactRef

    @property
    def workload(self) -> str:
        """Name of the workload: a DNS label, the same for every release of one release config on one target."""
        return workload_name(self.name, self.target.name)

    @property
    def endpoint(self) -> str:
        """Name of the Service, which is not the workload's: a LeaderWorkerSet uses that."""
        return workload_endpoint(self.name, self.target.name)

    @property
    def selector(self) -> dict[str, str]:
        """Labels that all pods of the workload have, and no others."""
        return {"app.kubernetes.io/name": "tritonserver", INSTANCE_LABEL: self.workload}

    @property
    def annotations(self) -> dict[str, str]:
        """Digests of the served artifacts, and texts with characters that labels may not have."""
        return {
            f"{LABEL_PREFIX}release": self.release_id,
            f"{LABEL_PREFIX}model": self.model_id,
            f"{LABEL_PREFIX}repository-digest": self.repository.digest,
            f"{LABEL_PREFIX}engine-digest": self.engine.digest,
            f"{LABEL_PREFIX}checkpoint-digest": self.checkpoint.digest,
        }

    def labels(self, options: ServingManifestOptions) -> dict[str, str]:
        """Labels of every object of the workload, the options' own included."""
        return {
            **{name: label_value(value) for name, value in options.labels.items()},
            **self.selector,
            "app.kubernetes.io/component": "serving",
            "app.kubernetes.io/part-of": label_value(self.name),
            "app.kubernetes.io/managed-by": "llm-pipeline",
            f"{LABEL_PREFIX}release": label_value(self.release_id),
            f"{LABEL_PREFIX}target": label_value(self.target.name),
        }

    def metadata(self, options: ServingManifestOptions, name: str | None = None) -> dict[str, Any]:
        """Metadata of an object; by default it has the workload's name."""
        return {
            "name": name or self.workload,
            "namespace": options.namespace,
            "labels": self.labels(options),
            "annotations": self.annotations,
        }
