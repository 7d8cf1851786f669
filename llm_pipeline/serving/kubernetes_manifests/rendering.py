"""All manifests of a release by file name, and their YAML: workload, network, metrics and autoscaling."""

from __future__ import annotations

from typing import Any

import yaml

from llm_pipeline.config.kubernetes_serving import ServingManifestOptions
from llm_pipeline.serving.kubernetes_manifests.pods import (
    REPOSITORY,
    SSH_OPTIONS,
    SSH_PORT,
    host_names,
    serving_pod,
    worker_pod,
)
from llm_pipeline.serving.kubernetes_manifests.released import INSTANCE_LABEL, ServedRelease
from llm_pipeline.serving.launch_plan import LaunchPlan, MpiHosts, launch_plan, nodes_of
from llm_pipeline.serving.protocols.triton import ACTIVE_REQUESTS

WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
"""Label that the controller puts on pods: 0 on leaders."""

_EXCLUSIVE_TOPOLOGY = "leaderworkerset.sigs.k8s.io/exclusive-topology"
_KEPT_REVISIONS = 5
_SCRAPE_INTERVAL = "15s"
_BUSY_SHARE = 0.8
_POLLING_SECONDS = 15
_BEHAVIOR = {
    "scaleUp": {
        "stabilizationWindowSeconds": 0,
        "policies": [{"type": "Percent", "value": 100, "periodSeconds": 60}],
    },
    "scaleDown": {
        "stabilizationWindowSeconds": 600,
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 300}],
    },
}
"""Weights take minutes to load, so servers are added at once and removed slowly. The measure is the served model's own
gauge, which every engine of this package has: `nv_trt_llm_*` metrics exist only with the C++ backend, and Triton's
queue of a decoupled model is always empty."""
_WIDTH = 120


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

    A group is recreated as a whole: MPI does not survive the loss of a rank.
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
    """Left out with an autoscaler, whose number each new `kubectl apply` would reset."""
    return {"replicas": options.minimum_replicas} if options.autoscaler == "none" else {}


def _update(options: ServingManifestOptions) -> dict[str, int]:
    return {"maxSurge": options.surge, "maxUnavailable": 0 if options.surge else 1}


def service(release: ServedRelease, plan: LaunchPlan, options: ServingManifestOptions) -> dict[str, Any]:
    """A `v1` Service with the ports of the server; older servers apply no port server-side without its protocol."""
    protocols = {"http": "http", "grpc": "kubernetes.io/h2c", "metrics": "http"}
    ports = [
        {"name": name, "port": port, "targetPort": name, "protocol": "TCP", "appProtocol": protocols[name]}
        for name, port in plan.ports.by_name().items()
    ]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": release.metadata(options, release.endpoint),
        "spec": {"type": "ClusterIP", "selector": answering_pods(release, plan), "ports": ports},
    }


def pod_monitor(release: ServedRelease, plan: LaunchPlan, options: ServingManifestOptions) -> dict[str, Any]:
    """A `monitoring.coreos.com/v1` PodMonitor of the server's metrics."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": release.metadata(options),
        "spec": {
            "selector": {"matchLabels": answering_pods(release, plan)},
            "podTargetLabels": [INSTANCE_LABEL],
            "podMetricsEndpoints": [{"port": "metrics", "path": "/metrics", "interval": _SCRAPE_INTERVAL}],
        },
    }


def disruption_budget(release: ServedRelease, options: ServingManifestOptions) -> dict[str, Any]:
    """A `policy/v1` PodDisruptionBudget: nodes are emptied one pod at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": release.metadata(options),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": release.selector}},
    }


def horizontal_pod_autoscaler(
    release: ServedRelease, plan: LaunchPlan, options: ServingManifestOptions
) -> dict[str, Any]:
    """An `autoscaling/v2` HorizontalPodAutoscaler on the metric of the pods themselves."""
    target = {"type": "AverageValue", "averageValue": str(wanted_requests(release))}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": release.metadata(options),
        "spec": {
            "scaleTargetRef": _workload(release, plan),
            "minReplicas": options.minimum_replicas,
            "maxReplicas": options.maximum_replicas,
            "metrics": [{"type": "Pods", "pods": {"metric": {"name": ACTIVE_REQUESTS}, "target": target}}],
            "behavior": _BEHAVIOR,
        },
    }


def scaled_object(release: ServedRelease, plan: LaunchPlan, options: ServingManifestOptions) -> dict[str, Any]:
    """A `keda.sh/v1alpha1` ScaledObject that asks Prometheus; without data nothing is scaled."""
    series = f'{ACTIVE_REQUESTS}{{namespace="{options.namespace}",app_kubernetes_io_instance="{release.workload}"}}'
    trigger = {
        "type": "prometheus",
        "metricType": "AverageValue",
        "metadata": {
            "serverAddress": options.prometheus,
            "query": f"sum({series})",
            "threshold": str(wanted_requests(release)),
            "ignoreNullValues": "false",
        },
    }
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": release.metadata(options),
        "spec": {
            "scaleTargetRef": _workload(release, plan),
            "minReplicaCount": options.minimum_replicas,
            "maxReplicaCount": options.maximum_replicas,
            "pollingInterval": _POLLING_SECONDS,
            "triggers": [trigger],
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _BEHAVIOR}},
        },
    }


def wanted_requests(release: ServedRelease) -> int:
    """Requests that a server should have on average: a server is added before requests wait."""
    return max(1, round(_BUSY_SHARE * release.target.limits.maximum_sequences))


def _workload(release: ServedRelease, plan: LaunchPlan) -> dict[str, str]:
    over_nodes = plan.nodes > 1
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1" if over_nodes else "apps/v1",
        "kind": "LeaderWorkerSet" if over_nodes else "Deployment",
        "name": release.workload,
    }


def pod_launch_plan(release: ServedRelease, options: ServingManifestOptions) -> LaunchPlan:
    """How the pods of a release start their server.

    Raises:
        Unsupported: The target cannot be started.
    """
    nodes = nodes_of(release.target)
    names = MpiHosts(names=host_names(release, nodes), ssh_port=SSH_PORT, ssh_options=SSH_OPTIONS)
    return launch_plan(
        release.target,
        repository=REPOSITORY,
        ports=options.ports,
        hosts=names if nodes > 1 else None,
        digest=release.repository.digest,
        drain_seconds=options.drain_seconds,
    )


def render_manifests(release: ServedRelease, options: ServingManifestOptions) -> dict[str, dict[str, Any]]:
    """The manifests by file name, in the order in which they may be applied.

    Raises:
        Unsupported: The target cannot be started.
        ConfigError: The options lack an image, the store's claim, or the label of the target's nodes.
    """
    plan = pod_launch_plan(release, options)
    workload = leader_worker_set if plan.nodes > 1 else deployment
    manifests = [
        workload(release, plan, options),
        service(release, plan, options),
        pod_monitor(release, plan, options),
        disruption_budget(release, options),
    ]
    if options.autoscaler == "hpa":
        manifests.append(horizontal_pod_autoscaler(release, plan, options))
    if options.autoscaler == "keda":
        manifests.append(scaled_object(release, plan, options))
    return {f"{manifest['kind'].lower()}.yaml": manifest for manifest in manifests}


def to_yaml(manifest: dict[str, Any]) -> str:
    """A manifest as YAML, with its keys in the order in which they were rendered."""
    return yaml.dump(manifest, Dumper=_Plain, sort_keys=False, width=_WIDTH)


class _Plain(yaml.SafeDumper):
    """Writes repeated parts in full: `kubectl` reads YAML anchors, people do not."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the base's signature
        return True
