"""What keeps the pods running: a Deployment, or a LeaderWorkerSet for servers over several nodes."""

from __future__ import annotations

from typing import Any

from llm_pipeline.config.kubernetes_serving import ServingManifestOptions
from llm_pipeline.serving.kubernetes_manifests.pods import serving_pod, worker_pod
from llm_pipeline.serving.kubernetes_manifests.released import ServedRelease
from llm_pipeline.serving.launch_plan import LaunchPlan

WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
"""Label that the controller puts on pods: 0 on leaders."""

_EXCLUSIVE_TOPOLOGY = "leaderworkerset.sigs.k8s.io/exclusive-topology"
_KEPT_REVISIONS = 5


def deployment(release: ServedRelease, plan: LaunchPlan, options: ServingManifestOptions) -> dict[str, Any]:
    """An `apps/v1` Deployment. It never has fewer servers than wanted during an update, unless `surge` is 0."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": release.metadata(options),
        "spec": {
            **_replicas(options),
            "revisionHistoryLimit": _KEPT_REVISIONS,
            "progressDeadlineSeconds": 60 * options.startup_minutes + 600,
            "selector": {"matchLabels": release.selector},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": _update(options)},
            "template": serving_pod(release, plan, options),
        },
    }


def leader_worker_set(release: ServedRelease, plan: LaunchPlan, options: ServingManifestOptions) -> dict[str, Any]:
    """A `leaderworkerset.x-k8s.io/v1` LeaderWorkerSet: a group of pods, one a node, for each server.

    A group lives and dies as one: MPI survives the loss of no rank.
    """
    topology = {_EXCLUSIVE_TOPOLOGY: options.group_topology} if options.group_topology else {}
    metadata = release.metadata(options)
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": metadata | {"annotations": metadata["annotations"] | topology},
        "spec": {
            **_replicas(options),
            "startupPolicy": "LeaderCreated",  # the leader waits for its workers, so they must not wait for it
            "rolloutStrategy": {"type": "RollingUpdate", "rollingUpdateConfiguration": _update(options)},
            "networkConfig": {"subdomainPolicy": "Shared"},
            "leaderWorkerTemplate": {
                "size": plan.nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": serving_pod(release, plan, options),
                "workerTemplate": worker_pod(release, plan, options),
            },
        },
    }


def answering_pods(release: ServedRelease, plan: LaunchPlan) -> dict[str, str]:
    """Labels of the pods that take requests."""
    return release.selector | ({WORKER_INDEX: "0"} if plan.nodes > 1 else {})


def _replicas(options: ServingManifestOptions) -> dict[str, int]:
    """An autoscaler's number is not to be set back whenever manifests are applied."""
    return {"replicas": options.minimum_replicas} if options.autoscaler == "none" else {}


def _update(options: ServingManifestOptions) -> dict[str, int]:
    return {"maxSurge": options.surge, "maxUnavailable": 0 if options.surge else 1}
