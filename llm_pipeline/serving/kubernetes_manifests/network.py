"""How pods are reached, watched and protected: Service, PodMonitor, PodDisruptionBudget."""

from __future__ import annotations

from typing import Any

from llm_pipeline.config.kubernetes_serving import ServingManifestOptions
from llm_pipeline.serving.kubernetes_manifests.released import INSTANCE_LABEL, ServedRelease
from llm_pipeline.serving.kubernetes_manifests.workloads import answering_pods
from llm_pipeline.serving.launch_plan import LaunchPlan

_SCRAPE_INTERVAL = "15s"


def service(release: ServedRelease, plan: LaunchPlan, options: ServingManifestOptions) -> dict[str, Any]:
    """A `v1` Service with the ports of the server."""
    protocols = {"http": "http", "grpc": "kubernetes.io/h2c", "metrics": "http"}
    ports = [
        {"name": name, "port": port, "targetPort": name, "appProtocol": protocols[name]}
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
