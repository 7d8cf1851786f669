"""All manifests of a release, by file name, and their YAML."""

from __future__ import annotations

from typing import Any

import yaml

from llm_pipeline.config.kubernetes_serving import ServingManifestOptions
from llm_pipeline.serving.kubernetes_manifests.autoscaling import horizontal_pod_autoscaler, scaled_object
from llm_pipeline.serving.kubernetes_manifests.network import disruption_budget, pod_monitor, service
from llm_pipeline.serving.kubernetes_manifests.pods import SSH_OPTIONS, SSH_PORT, host_names
from llm_pipeline.serving.kubernetes_manifests.released import ServedRelease
from llm_pipeline.serving.kubernetes_manifests.volumes import REPOSITORY
from llm_pipeline.serving.kubernetes_manifests.workloads import deployment, leader_worker_set
from llm_pipeline.serving.launch_plan import LaunchPlan, MpiHosts, launch_plan
from llm_pipeline.serving.launch_rules import nodes_of

_WIDTH = 120


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
    """A manifest as YAML, its keys in the order in which people write them."""
    return yaml.dump(manifest, Dumper=_Plain, sort_keys=False, width=_WIDTH)


class _Plain(yaml.SafeDumper):
    """Writes repeated parts out: `kubectl` reads anchors, people do not."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the base's signature
        return True
