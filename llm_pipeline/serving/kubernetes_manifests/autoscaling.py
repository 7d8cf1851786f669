"""As many servers as requests need: by the served model's own gauge of requests that wait or run.

Every model `llm` of this package has the gauge, whatever its engine; `nv_trt_llm_*` metrics exist only with the C++
backend, and Triton's queue of a decoupled model is always empty. Weights take minutes to load, so servers are added at
once and taken away slowly.
"""

from __future__ import annotations

from typing import Any

from llm_pipeline.config.kubernetes_serving import ServingManifestOptions
from llm_pipeline.serving.kubernetes_manifests.released import ServedRelease
from llm_pipeline.serving.launch_plan import LaunchPlan

METRIC = "llm_active_requests"

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


def horizontal_pod_autoscaler(
    release: ServedRelease, plan: LaunchPlan, options: ServingManifestOptions
) -> dict[str, Any]:
    """An `autoscaling/v2` HorizontalPodAutoscaler on the metric of the pods themselves."""
    target = {"type": "AverageValue", "averageValue": str(wanted_requests(release, plan, options))}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": release.metadata(options),
        "spec": {
            "scaleTargetRef": _workload(release, plan),
            "minReplicas": options.minimum_replicas,
            "maxReplicas": options.maximum_replicas,
            "metrics": [{"type": "Pods", "pods": {"metric": {"name": METRIC}, "target": target}}],
            "behavior": _BEHAVIOR,
        },
    }


def scaled_object(release: ServedRelease, plan: LaunchPlan, options: ServingManifestOptions) -> dict[str, Any]:
    """A `keda.sh/v1alpha1` ScaledObject that asks Prometheus; what Prometheus does not know changes nothing."""
    series = f'{METRIC}{{namespace="{options.namespace}",app_kubernetes_io_instance="{release.workload}"}}'
    trigger = {
        "type": "prometheus",
        "metricType": "AverageValue",
        "metadata": {
            "serverAddress": options.prometheus,
            "query": f"sum({series})",
            "threshold": str(wanted_requests(release, plan, options)),
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


def wanted_requests(release: ServedRelease, plan: LaunchPlan, options: ServingManifestOptions) -> int:
    """Requests that a server should have on average, waiting or running."""
    held = release.target.limits.maximum_sequences * len(plan.instances)
    return options.active_requests_per_replica or max(1, round(_BUSY_SHARE * held))


def _workload(release: ServedRelease, plan: LaunchPlan) -> dict[str, str]:
    over_nodes = plan.nodes > 1
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1" if over_nodes else "apps/v1",
        "kind": "LeaderWorkerSet" if over_nodes else "Deployment",
        "name": release.workload,
    }
