"""The pods that serve: one that answers, and for servers over several nodes workers that only offer their GPUs.

They meet the "restricted" Pod Security Standard. A first container lays out the server's view of the repository, from
verified artifacts, and refuses a host that the engine was not built for; then the server starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.kubernetes_serving import ServingManifestOptions
from llm_pipeline.config.store import StoreModel
from llm_pipeline.config.target import Target
from llm_pipeline.serving.kubernetes_manifests.released import ServedRelease
from llm_pipeline.serving.launch_plan import LaunchPlan

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
        "ports": [{"name": name, "containerPort": port} for name, port in plan.ports.by_name().items()],
        "resources": _resources(plan, options),
        **_probes(plan, options),
        **_lifecycle(plan, options),
    }
    return _template(release, options, volumes, first, server)


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
    return _template(release, options, volumes, first, worker)


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
    container: dict[str, Any],
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
        "containers": [container],
        "volumes": [volume.manifest for volume in volumes],
    }
    return {"metadata": {"labels": release.labels(options), "annotations": release.annotations}, "spec": spec}


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
    extra = {name: str(count) for name, count in options.extra_resources.items()}
    gpus = {options.gpu_resource: str(plan.gpus_per_node)} if plan.gpus_per_node else {}
    return resources(extra | gpus, memory_gib=options.memory_gib, cpu=options.cpu)


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
