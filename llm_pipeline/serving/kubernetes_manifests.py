"""Kubernetes manifests that serve a release's model repository: workload, network, metrics and autoscaling.

    for name, manifest in render_manifests(release, options).items():
        (directory / name).write_text(to_yaml(manifest))

A server on one node is a Deployment; one over several nodes is a LeaderWorkerSet, whose leader starts the ranks on its
workers. Pods hold no weights: a first container lays out the server's view of the repository, from artifacts in the
store that it verifies, and refuses a host that the engine was not built for; then the server starts. Pods meet the
"restricted" Pod Security Standard.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from llm_pipeline.artifacts.repository_layout import MODEL_NAME, MODEL_VERSION
from llm_pipeline.base.digest import sha256_json
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.labels import LABEL_PREFIX, label_value
from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.config.kubernetes_serving import ServingManifestOptions
from llm_pipeline.config.store import StoreModel
from llm_pipeline.config.target import Target
from llm_pipeline.serving.completions import ACTIVE_REQUESTS
from llm_pipeline.serving.endpoint_access import served_name
from llm_pipeline.serving.launch_plan import LaunchPlan, MpiHosts, launch_plan, nodes_of

INSTANCE_LABEL = "app.kubernetes.io/instance"
"""Prometheus has it on every series, as `app_kubernetes_io_instance`."""

_LONGEST_NAME = 40
"""LeaderWorkerSets and autoscalers append to it, and labels take 63 characters."""

VIEW = "/srv/llm-pipeline/view"
REPOSITORY = f"{VIEW}/repository"
KEYS = "/etc/llm-pipeline-mpi"
HOST_KEYS = "/run/llm-pipeline-mpi"
SSH_SECRET = "llm-pipeline-mpi"  # noqa: S105 - the name of a secret
_CACHE = "/srv/llm-pipeline/cache"
_READABLE_BY_GROUP = 0o440
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
driver's name of the GPU, with `-` for blanks. Nodes whose GPUs are shared or split have other labels: `gpu_product`
names those."""
OPENAI = "openai"
"""Container and port of OpenAI's API."""

_OPENAI_GIB, _OPENAI_CPU = 1.0, 0.5
SSH_PORT = 2222
SSH_OPTIONS = (
    "-i", f"{KEYS}/id", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
)  # fmt: skip
"""Workers make host keys when they start, and accept only the key in the secret."""

_HOST_KEY = f"{HOST_KEYS}/host_key"
_CLOSING_SECONDS = 15
CONFINED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""The security context of every container."""
_STARTUP_PERIOD_SECONDS = 10
_PACKAGE = ("python3", "-m", "llm_pipeline")
_POD_NAME = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}

WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
"""Label that the controller puts on pods: 0 on leaders."""

_KEPT_REVISIONS = 5
_UPDATE = {"maxSurge": 1, "maxUnavailable": 0}
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

    def metadata(self, options: ServingManifestOptions, name: str | None = None) -> dict[str, Any]:
        """Metadata of an object; by default it has the workload's name."""
        return {
            "name": name or self.workload,
            "namespace": options.namespace,
            "labels": self.labels,
            "annotations": self.annotations,
        }


@dataclass(frozen=True)
class Volume:
    """A volume, and where containers see it."""

    name: str
    source: dict[str, Any]
    path: str
    writable: bool = False

    @property
    def manifest(self) -> dict[str, Any]:
        """Its entry among the volumes of the pod."""
        return {"name": self.name, **self.source}

    @property
    def mount(self) -> dict[str, Any]:
        """Its entry among the mounts of a container."""
        return {"name": self.name, "mountPath": self.path, **({} if self.writable else {"readOnly": True})}


def store_of_pods(options: ServingManifestOptions) -> StoreModel:
    """The store's configuration in pods: they only read and verify, so they get no signing key.

    Raises:
        ConfigError: No volume claim holds the store.
    """
    store = options.store
    signing = store.signing and store.signing.model_copy(update={"private_key": None, "password_variable": None})
    if store.directory is None:
        return store.model_copy(update={"signing": signing, "cache": store.cache or _CACHE})
    if not any(store.directory.is_relative_to(claim.path) for claim in options.claims):
        raise ConfigError(f"pods do not reach the store {store.uri}", hint="name the claim that holds it under claims")
    return store.model_copy(update={"signing": signing})


def serving_volumes(options: ServingManifestOptions, shared_memory_gib: int) -> tuple[Volume, ...]:
    """Volumes of every pod: the links in the view lead into the store, at the same path in all containers."""
    store = store_of_pods(options)
    claims = [Volume(f"claim-{number}", _claim(claim.claim), claim.path) for number, claim in enumerate(options.claims)]
    cache = [Volume("cache", {"emptyDir": {}}, store.cache, writable=True)] if store.cache else []
    shared_memory = {"emptyDir": {"medium": "Memory", "sizeLimit": f"{shared_memory_gib}Gi"}}
    return (
        Volume("view", {"emptyDir": {}}, VIEW, writable=True),
        *claims,
        *cache,
        Volume("tmp", {"emptyDir": {}}, "/tmp", writable=True),  # noqa: S108 - the pod's own
        Volume("shared-memory", shared_memory, "/dev/shm", writable=True),  # noqa: S108
    )


def ssh_volumes() -> tuple[Volume, ...]:
    """Volumes of pods whose leader starts ranks on its workers. SSH takes keys that their own user cannot change."""
    items = [{"key": "ssh-privatekey", "path": "id"}, {"key": "ssh-publickey", "path": "authorized_keys"}]
    secret = {"secretName": SSH_SECRET, "defaultMode": _READABLE_BY_GROUP, "items": items}
    return (
        Volume("ssh-keys", {"secret": secret}, KEYS),
        Volume("ssh-host-key", {"emptyDir": {"medium": "Memory"}}, HOST_KEYS, writable=True),
    )


def _claim(name: str) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": name, "readOnly": True}}


def product_of(target: Target, named: str | None) -> str:
    """Value of the label `nvidia.com/gpu.product` for a target: the named one, or that of its GPU.

    Raises:
        ConfigError: None is named, and the GPU's is not known.
    """
    product = named or _PRODUCTS.get(target.accelerator)
    if product is None:
        raise ConfigError(
            f"the label of nodes with {target.accelerator} is not known",
            where=f"target {target.name}",
            hint="name it as gpu_product: `kubectl get nodes -L nvidia.com/gpu.product` shows it",
        )
    return product


def serving_pod(release: ServedRelease, plan: LaunchPlan, options: ServingManifestOptions) -> dict[str, Any]:
    """The template of the pod that answers; over several nodes, the leader's."""
    volumes, first = _volumes(plan, options), [_setup(release, plan, options)]
    if plan.nodes > 1:
        first.append(_wait_for_workers(release, plan, options))
    server = {
        **_container("server", server_image(release, options), plan.command, volumes),
        "workingDir": plan.working_directory,
        "env": [*([_POD_NAME] if plan.nodes > 1 else []), *_environment(plan)],
        "ports": [
            {"name": name, "containerPort": port} for name, port in plan.ports.by_name().items() if name != OPENAI
        ],
        "resources": _resources(plan, options),
        **_probes(plan, options),
        **_lifecycle(plan, options),
    }
    return _template(release, options, volumes, first, [server, _openai(release, plan, options, volumes)])


def _openai(
    release: ServedRelease, plan: LaunchPlan, options: ServingManifestOptions, volumes: Sequence[Volume]
) -> dict[str, Any]:
    """The container that speaks OpenAI's API, in an image that holds this package."""
    command = (
        *("python3", "-m", "llm_pipeline.endpoint", "--host", "0.0.0.0", "--port", str(plan.ports.openai)),  # noqa: S104 - the pod's own
        *("--triton", f"127.0.0.1:{plan.ports.http}", "--model", f"{REPOSITORY}/{MODEL_NAME}/{MODEL_VERSION}"),
        *("--root", served_name(release.repository.digest)),
    )
    ready = {"httpGet": {"path": "/health", "port": OPENAI}, "periodSeconds": 5, "timeoutSeconds": 5}
    live = {"tcpSocket": {"port": OPENAI}, "initialDelaySeconds": 30, "periodSeconds": 15}
    return {
        **_container(OPENAI, _setup_image(options), command, volumes),
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - the pod's own
        "ports": [{"name": OPENAI, "containerPort": plan.ports.openai}],
        "resources": resources({}, memory_gib=_OPENAI_GIB, cpu=_OPENAI_CPU),
        "readinessProbe": ready,
        "livenessProbe": live,
        **_lifecycle(plan, options),
    }


def worker_pod(release: ServedRelease, plan: LaunchPlan, options: ServingManifestOptions) -> dict[str, Any]:
    """The template of a worker: an SSH server, through which the leader's mpirun starts the ranks."""
    volumes, image = _volumes(plan, options), server_image(release, options)
    make_key = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", _HOST_KEY)
    worker = {
        **_container("worker", image, _ssh_server(), volumes),
        "workingDir": plan.working_directory,
        "env": _environment(plan),
        "ports": [{"name": "ssh", "containerPort": SSH_PORT}],
        "resources": _resources(plan, options),
        "readinessProbe": {"tcpSocket": {"port": "ssh"}, "periodSeconds": 5},
        **_lifecycle(plan, options),
    }
    first = [_setup(release, plan, options), _container("host-key", image, make_key, volumes)]
    return _template(release, options, volumes, first, [worker])


def server_image(release: ServedRelease, options: ServingManifestOptions) -> str:
    """The image of the server.

    Raises:
        ConfigError: Neither the options nor the target name one.
    """
    image = options.image or release.target.container
    if image is None:
        raise ConfigError("there is no image to serve with", where=f"target {release.target.name}", hint="name image")
    return image


def pod_identity(user: str | None) -> dict[str, Any]:
    """The security context of a pod of the "restricted" Pod Security Standard, run as `uid:gid` or the image's user."""
    ids: dict[str, Any] = {}
    if user is not None:
        uid, _, gid = user.partition(":")
        ids = {"runAsUser": int(uid), "runAsGroup": int(gid or uid), "fsGroup": int(gid or uid)}
        ids["fsGroupChangePolicy"] = "OnRootMismatch"
    return {"runAsNonRoot": True, **ids, "seccompProfile": {"type": "RuntimeDefault"}}


def resources(counted: dict[str, str], *, memory_gib: float | None, cpu: float | None) -> dict[str, dict[str, str]]:
    """What a container may take: GPUs and the like and memory for certain, processors at least."""
    limits = counted | ({"memory": mebibytes(memory_gib)} if memory_gib else {})
    requests = limits | ({"cpu": f"{round(cpu * 1000)}m"} if cpu else {})
    return {name: value for name, value in (("limits", limits), ("requests", requests)) if value}


def mebibytes(gibibytes: float) -> str:
    """As Kubernetes writes it."""
    return f"{round(gibibytes * 1024)}Mi"


def _template(
    release: ServedRelease,
    options: ServingManifestOptions,
    volumes: Sequence[Volume],
    first: Sequence[dict[str, Any]],
    containers: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    optional = {
        "serviceAccountName": options.service_account,
        "imagePullSecrets": [{"name": secret} for secret in options.image_pull_secrets],
        "nodeSelector": _node_selector(release, options),
        "tolerations": _tolerations(release, options),
    }
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": options.endpoint_seconds + options.drain_seconds + _CLOSING_SECONDS,
        "securityContext": pod_identity(options.user),
        **{name: value for name, value in optional.items() if value},
        "topologySpreadConstraints": [_spread(release)],
        "initContainers": list(first),
        "containers": list(containers),
        "volumes": [volume.manifest for volume in volumes],
    }
    return {"metadata": {"labels": release.labels, "annotations": release.annotations}, "spec": spec}


def _container(name: str, image: str, command: Sequence[str], volumes: Sequence[Volume]) -> dict[str, Any]:
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "securityContext": CONFINED,
        "volumeMounts": [volume.mount for volume in volumes],
    }


def _setup(release: ServedRelease, plan: LaunchPlan, options: ServingManifestOptions) -> dict[str, Any]:
    """It sees the GPUs, too, so that an engine that was built for another host is refused before it is loaded."""
    store = store_of_pods(options).model_dump_json(exclude_none=True)
    repository = f"{release.repository.kind}/{release.repository.digest}"
    command = (*_PACKAGE, "pod", "lay-out", repository, "--store", store, "--view", REPOSITORY)
    container = _container("setup", _setup_image(options), command, serving_volumes(options, plan.shared_memory_gib))
    secrets = [{"secretRef": {"name": secret}} for secret in options.secrets]
    return {
        **container,
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - the pod's own
        **({"envFrom": secrets} if secrets else {}),
        "resources": _resources(plan, options),
    }


def _wait_for_workers(release: ServedRelease, plan: LaunchPlan, options: ServingManifestOptions) -> dict[str, Any]:
    workers = [f"{name}:{SSH_PORT}" for name in host_names(release, plan.nodes)[1:]]
    command = (*_PACKAGE, "pod", "await", *workers, "--minutes", str(options.startup_minutes))
    return {**_container("workers", _setup_image(options), command, []), "env": [_POD_NAME]}


def host_names(release: ServedRelease, nodes: int) -> tuple[str, ...]:
    """DNS names of the pods of one group; Kubernetes inserts the leader's name.

    Source: `SubdomainShared` of `api/leaderworkerset/v1/leaderworkerset_types.go` of kubernetes-sigs/lws at 060ab4da.
    """
    leader = "$(POD_NAME)"
    return (f"{leader}.{release.workload}", *(f"{leader}-{node}.{release.workload}" for node in range(1, nodes)))


def _setup_image(options: ServingManifestOptions) -> str:
    image = options.setup_image or options.image
    if image is None:
        raise ConfigError(
            "no image holds this package, and pods lay out their model repository with it",
            hint="name image (the one of docker/Dockerfile.serving does), or setup_image",
        )
    return image


def _volumes(plan: LaunchPlan, options: ServingManifestOptions) -> tuple[Volume, ...]:
    over_nodes = ssh_volumes() if plan.nodes > 1 else ()
    return (*serving_volumes(options, plan.shared_memory_gib), *over_nodes)


def _environment(plan: LaunchPlan) -> list[dict[str, str]]:
    values = {"HOME": "/tmp", **plan.environment}  # noqa: S108 - the pod's own
    return [{"name": name, "value": value} for name, value in sorted(values.items())]


def _ssh_server() -> tuple[str, ...]:
    settings = ("PidFile=none", "UsePAM=no", "StrictModes=no", "PasswordAuthentication=no")
    keys = ("-o", f"AuthorizedKeysFile={KEYS}/authorized_keys", "-h", _HOST_KEY)
    chosen = (word for setting in settings for word in ("-o", setting))
    return ("/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null", "-p", str(SSH_PORT), *chosen, *keys)


def _probes(plan: LaunchPlan, options: ServingManifestOptions) -> dict[str, Any]:
    ready, live = ({"httpGet": {"path": path, "port": "http"}} for path in (plan.ready_path, plan.live_path))
    attempts = options.startup_minutes * 60 // _STARTUP_PERIOD_SECONDS
    return {
        "startupProbe": {**ready, "periodSeconds": _STARTUP_PERIOD_SECONDS, "failureThreshold": attempts},
        "readinessProbe": {**ready, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 2},
        "livenessProbe": {**live, "periodSeconds": 15, "timeoutSeconds": 10, "failureThreshold": 4},
    }


def _lifecycle(plan: LaunchPlan, options: ServingManifestOptions) -> dict[str, Any]:
    """A single server drains by itself; mpirun would kill its servers after a second, so there the pod waits."""
    drain = 0 if plan.mode == "single" else options.drain_seconds
    return {"lifecycle": {"preStop": {"sleep": {"seconds": options.endpoint_seconds + drain}}}}


def _resources(plan: LaunchPlan, options: ServingManifestOptions) -> dict[str, dict[str, str]]:
    gpus = {"nvidia.com/gpu": str(plan.gpus_per_node)} if plan.gpus_per_node else {}
    return resources(gpus, memory_gib=options.memory_gib, cpu=None)


def _node_selector(release: ServedRelease, options: ServingManifestOptions) -> dict[str, str]:
    if release.target.accelerator == "cpu":
        return options.node_selector
    return {"nvidia.com/gpu.product": product_of(release.target, options.gpu_product), **options.node_selector}


def _tolerations(release: ServedRelease, options: ServingManifestOptions) -> list[dict[str, Any]]:
    if release.target.accelerator == "cpu":
        return []
    return [toleration.model_dump(exclude_none=True) for toleration in options.tolerations]


def _spread(release: ServedRelease) -> dict[str, Any]:
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": release.selector},
    }


def deployment(release: ServedRelease, plan: LaunchPlan, options: ServingManifestOptions) -> dict[str, Any]:
    """An `apps/v1` Deployment. It never has fewer servers than wanted during an update."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": release.metadata(options),
        "spec": {
            **_replicas(options),
            "revisionHistoryLimit": _KEPT_REVISIONS,
            "progressDeadlineSeconds": 60 * options.startup_minutes + 600,
            "selector": {"matchLabels": release.selector},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": _UPDATE},
            "template": serving_pod(release, plan, options),
        },
    }


def leader_worker_set(release: ServedRelease, plan: LaunchPlan, options: ServingManifestOptions) -> dict[str, Any]:
    """A `leaderworkerset.x-k8s.io/v1` LeaderWorkerSet: a group of pods, one a node, for each server.

    A group is recreated as a whole: MPI does not survive the loss of a rank.
    """
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": release.metadata(options),
        "spec": {
            **_replicas(options),
            "startupPolicy": "LeaderCreated",  # the leader waits for its workers, so they must not wait for it
            "rolloutStrategy": {"type": "RollingUpdate", "rollingUpdateConfiguration": _UPDATE},
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


def service(release: ServedRelease, plan: LaunchPlan, options: ServingManifestOptions) -> dict[str, Any]:
    """A `v1` Service with the ports of the server; older servers apply no port server-side without its protocol."""
    protocols = {"http": "http", "grpc": "kubernetes.io/h2c", "metrics": "http", OPENAI: "http"}
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
