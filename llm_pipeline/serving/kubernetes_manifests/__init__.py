"""Kubernetes manifests that serve a release's model repository: workload, network, metrics and autoscaling.

    for name, manifest in render_manifests(release, options).items():
        (directory / name).write_text(to_yaml(manifest))

A server on one node is a Deployment; one over several nodes is a LeaderWorkerSet, whose leader starts the ranks on its
workers. Pods hold no weights: they link to the store, and verify the linked artifacts before the server starts.
"""

from __future__ import annotations

from llm_pipeline.config.kubernetes_serving import ServingManifestOptions
from llm_pipeline.serving.kubernetes_manifests.released import ServedRelease
from llm_pipeline.serving.kubernetes_manifests.rendering import pod_launch_plan, render_manifests, to_yaml

__all__ = ["ServedRelease", "ServingManifestOptions", "pod_launch_plan", "render_manifests", "to_yaml"]
