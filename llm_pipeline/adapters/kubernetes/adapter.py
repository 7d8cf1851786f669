"""The settings of the runner `kubernetes`, what opens it, and its probe."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from llm_pipeline.base.adapters import Adapter, OnCall
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.environment import Claims, EnvironmentModel, Tolerations
from llm_pipeline.config.kubernetes_serving import ServingManifestOptions
from llm_pipeline.config.model import Cores, Gpus, Labels, Name, Names, PathText, PositiveGib, PositiveMinutes, Word
from llm_pipeline.config.server_place import ServerModel
from llm_pipeline.serving.control import ServerAdapter


class KubernetesEnvironment(EnvironmentModel):
    """A Kubernetes Job of one pod. The store must be one that pods reach: S3, or a claim at the same path.

    Attributes:
        namespace: Namespace of the Job.
        context: Context of the kubeconfig; None for the pod's own service account, or the current context.
        image: Image with its tag or digest; None for the target's own `container`. It is recorded as it is named here,
            so name the digest.
        python: The interpreter inside the image that has this package.
        gpus: GPUs of the pod.
        cpu: CPU request in cores; None for none.
        memory_gib: Memory request and limit; None for none.
        shared_memory_gib: Size of `/dev/shm`; in memory, so it counts towards `memory_gib`.
        node_selector: Labels that a node must have.
        tolerations: Taints of GPU nodes, mostly.
        claims: Persistent volume claims, by where the pod sees them.
        secrets: Secrets whose keys become environment variables of the pod.
        user: `uid:gid` of the pod, and the owner of its volumes; None for the image's own, which must not be root.
        service_account: Service account of the pod; it may name the secrets of the image's registry.
        start_timeout_minutes: Longest wait for a node and the image.
    """

    runner: Literal["kubernetes"]
    namespace: Name
    context: Word | None = None
    image: Word | None = None
    python: PathText = "python3"
    gpus: Gpus = 0
    cpu: Cores | None = None
    memory_gib: PositiveGib | None = None
    shared_memory_gib: PositiveGib = 1.0
    node_selector: Labels = Field(default={})
    tolerations: Tolerations = ()
    claims: Claims = ()
    secrets: Names = ()
    user: str | None = Field(default="1000:1000", pattern=r"^[1-9]\d*(:\d+)?$", max_length=32)
    service_account: Name | None = None
    start_timeout_minutes: PositiveMinutes = 30.0

    def is_deferrable(self) -> bool:
        """The triggerer must reach the cluster as workers do."""
        return True

    def is_seen_on_its_host_only(self) -> bool:
        """A cluster is seen from everywhere."""
        return False


_RUNNER_CLASS = "llm_pipeline.adapters.kubernetes.runner:KubernetesRunner"
RUNNER = Adapter(config=KubernetesEnvironment, open=OnCall(_RUNNER_CLASS), probe=OnCall(f"{_RUNNER_CLASS}.probe"))


class KubernetesServer(ServerModel):
    """Pods of a cluster, by the manifests that `llm-pipeline render` writes, and gone after the run.

    Attributes:
        context: Context of the kubeconfig; None for the pod's own service account, or the current context.
        manifests: How the release is served there. Staging has one server, and no autoscaler.
        endpoint: How the workers reach the Service `llm-<release config>-staging-<target>-endpoint` from outside the
            cluster, through a gateway of yours; None where they resolve the names of its Services.
    """

    fetches_release: ClassVar[bool] = True

    kind: Literal["kubernetes"]
    context: Word | None = None
    manifests: ServingManifestOptions = ServingManifestOptions()
    endpoint: Endpoint | None = None


_CONTROL = "llm_pipeline.adapters.kubernetes.server"
SERVER = ServerAdapter(
    config=KubernetesServer,
    open=OnCall(f"{_CONTROL}:KubernetesControl"),
    probe=OnCall(f"{_CONTROL}:probe"),
    endpoint=OnCall(f"{_CONTROL}:service_endpoint"),
)
