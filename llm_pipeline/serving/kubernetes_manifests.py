"""Kubernetes manifests that serve a release's model repository: workload, network, metrics and autoscaling.

    for name, manifest in render_manifests(release, options).items():
        (directory / name).write_text(to_yaml(manifest))

A server on one node is a Deployment; one over several nodes is a LeaderWorkerSet, whose leader starts the ranks on its
workers. Pods hold no weights: a first container lays out the server's view of the repository, from artifacts in the
store that it verifies, and refuses a host that the engine was not built for; then the server starts. Pods meet the
"restricted" Pod Security Standard. The manifests themselves are the templates in `kubernetes_templates/`.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from llm_pipeline.artifacts.repository_layout import MODEL_NAME, MODEL_VERSION
from llm_pipeline.base.digest import sha256_json
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.labels import LABEL_PREFIX, label_value
from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.base.yaml_template import render_yaml
from llm_pipeline.config.kubernetes_serving import ServingManifestOptions
from llm_pipeline.config.target import Target
from llm_pipeline.serving.completions import ACTIVE_REQUESTS
from llm_pipeline.serving.endpoint_access import served_name
from llm_pipeline.serving.launch_plan import LaunchPlan, MpiHosts, launch_plan, nodes_of

INSTANCE_LABEL = "app.kubernetes.io/instance"
"""Prometheus has it on every series, as `app_kubernetes_io_instance`."""

_LONGEST_NAME = 40
"""LeaderWorkerSets and autoscalers append to it, and labels take 63 characters."""

_REPOSITORY = "/srv/llm-pipeline/view/repository"
_CACHE = "/srv/llm-pipeline/cache"
_SSH_PORT = 2222
_SSH_OPTIONS = (
    *("-i", "/etc/llm-pipeline-mpi/id", "-o", "BatchMode=yes"),
    *("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"),
)
"""Workers make host keys when they start, and accept only the key in the secret."""

_BUSY_SHARE = 0.8
_WIDTH = 120
_PRODUCTS = {
    "A10": "NVIDIA-A10",
    "A100-PCIe-80GB": "NVIDIA-A100-80GB-PCIe",
    "A100-SXM4-40GB": "NVIDIA-A100-SXM4-40GB",
    "A100-SXM4-80GB": "NVIDIA-A100-SXM4-80GB",
    "B200-SXM-180GB": "NVIDIA-B200",
    "H100-SXM5-80GB": "NVIDIA-H100-80GB-HBM3",
    "H200-SXM-141GB": "NVIDIA-H200",
    "L4": "NVIDIA-L4",
    "L40S": "NVIDIA-L40S",
}
"""The label `nvidia.com/gpu.product` by GPU of the catalog: GPU feature discovery (NVIDIA/k8s-device-plugin) writes the
driver's name of the GPU, with `-` for blanks. Nodes whose GPUs are shared or split have other labels:
`node_selector` names those."""

_PRODUCT_LABEL = "nvidia.com/gpu.product"


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

    @property
    def labels(self) -> dict[str, str]:
        """Labels of every object of the workload."""
        return {
            **self.selector,
            "app.kubernetes.io/component": "serving",
            "app.kubernetes.io/part-of": label_value(self.name),
            "app.kubernetes.io/managed-by": "llm-pipeline",
            f"{LABEL_PREFIX}release": label_value(self.release_id),
            f"{LABEL_PREFIX}target": label_value(self.target.name),
        }


def server_image(release: ServedRelease, options: ServingManifestOptions) -> str:
    """The image of the server.

    Raises:
        ConfigError: Neither the options nor the target name one.
    """
    image = options.image or release.target.container
    if image is None:
        raise ConfigError("there is no image to serve with", where=f"target {release.target.name}", hint="name image")
    return image


def _hosts(release: ServedRelease) -> MpiHosts:
    """The pods of one group by their DNS names; Kubernetes inserts the leader's name.

    Source: `SubdomainShared` of `api/leaderworkerset/v1/leaderworkerset_types.go` of kubernetes-sigs/lws at 060ab4da.
    """
    leader = "$(POD_NAME)"
    workers = (f"{leader}-{node}.{release.workload}" for node in range(1, nodes_of(release.target)))
    return MpiHosts(names=(f"{leader}.{release.workload}", *workers), ssh_port=_SSH_PORT, ssh_options=_SSH_OPTIONS)


def pod_launch_plan(release: ServedRelease, options: ServingManifestOptions) -> LaunchPlan:
    """How the pods of a release start their server.

    Raises:
        Unsupported: The target cannot be started.
    """
    return launch_plan(
        release.target,
        repository=_REPOSITORY,
        ports=options.ports,
        hosts=_hosts(release) if nodes_of(release.target) > 1 else None,
        digest=release.repository.digest,
        drain_seconds=options.drain_seconds,
    )


def render_manifests(
    release: ServedRelease, options: ServingManifestOptions, *, endpoint_seconds: int = 10
) -> dict[str, dict[str, Any]]:
    """The manifests by file name, in the order in which they may be applied.

    Args:
        release: What is served.
        options: How.
        endpoint_seconds: Time between the end of new requests to a pod and the signal to end.

    Raises:
        Unsupported: The target cannot be started.
        ConfigError: The options lack an image, the store's claim, or the label of the target's nodes.
    """
    plan = pod_launch_plan(release, options)
    over_nodes, on_gpus = plan.nodes > 1, release.target.accelerator != "cpu"
    workload = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1" if over_nodes else "apps/v1",
        "kind": "LeaderWorkerSet" if over_nodes else "Deployment",
        "name": release.workload,
    }
    selector = dict(options.node_selector)
    if on_gpus and _PRODUCT_LABEL not in selector:
        product = _PRODUCTS.get(release.target.accelerator)
        if product is None:
            raise ConfigError(
                f"the label of nodes with {release.target.accelerator} is not known",
                where=f"target {release.target.name}",
                hint=f"name it under node_selector: `kubectl get nodes -L {_PRODUCT_LABEL}` shows it",
            )
        selector[_PRODUCT_LABEL] = product
    setup_image = options.setup_image or options.image
    if setup_image is None:
        hint = "name image (the one of docker/Dockerfile.serving does), or setup_image"
        raise ConfigError("no image holds this package, and pods lay out their model repository with it", hint=hint)
    # Pods only read the store and verify, so they get no signing key.
    store = options.store
    signing = store.signing and store.signing.model_copy(update={"private_key": None, "password_variable": None})
    store = store.model_copy(update={"signing": signing})
    if store.directory is None:
        store = store.model_copy(update={"cache": store.cache or _CACHE})
    elif not any(store.directory.is_relative_to(claim.path) for claim in options.claims):
        raise ConfigError(f"pods do not reach the store {store.uri}", hint="name the claim that holds it under claims")
    gpus = {"nvidia.com/gpu": str(plan.gpus_per_node)} if plan.gpus_per_node else {}
    limits = gpus | ({"memory": f"{round(options.memory_gib * 1024)}Mi"} if options.memory_gib else {})
    uid, _, gid = options.user.partition(":")
    # mpirun would kill its servers after a second, so there the pod waits; a single server drains by itself.
    drain_seconds = 0 if plan.mode == "single" else options.drain_seconds
    values = {
        "release": release,
        "options": options,
        "plan": plan,
        "endpoint_seconds": endpoint_seconds,
        "hosts": _hosts(release),
        "store": store,
        "image": server_image(release, options),
        "setup_image": setup_image,
        "user": int(uid),
        "group": int(gid or uid),
        "node_selector": selector,
        "tolerations": [one.of_pod() for one in options.tolerations] if on_gpus else [],
        "resources": {"limits": limits, "requests": limits} if limits else {},
        "environment": {"HOME": "/tmp", **plan.environment},  # noqa: S108 - the pod's own
        "lifecycle": {"preStop": {"sleep": {"seconds": endpoint_seconds + drain_seconds}}},
        "model": f"{MODEL_NAME}/{MODEL_VERSION}",
        "served_name": served_name(release.repository.digest),
        "answering": release.selector | ({"leaderworkerset.sigs.k8s.io/worker-index": "0"} if over_nodes else {}),
        "workload": workload,
        "active_requests": ACTIVE_REQUESTS,
        "wanted_requests": max(1, round(_BUSY_SHARE * release.target.limits.maximum_sequences)),
    }
    autoscaler = [] if options.autoscaler == "none" else ["HorizontalPodAutoscaler"]
    kinds = (workload["kind"], "Service", "PodMonitor", "PodDisruptionBudget", *autoscaler)
    return {
        f"{kind.lower()}.yaml": render_yaml(
            "llm_pipeline.serving", "kubernetes_templates", f"{kind.lower()}.yaml.jinja", values
        )
        for kind in kinds
    }


def to_yaml(manifest: dict[str, Any]) -> str:
    """A manifest as YAML, with its keys in the order in which they were rendered."""
    return yaml.safe_dump(manifest, sort_keys=False, width=_WIDTH)
