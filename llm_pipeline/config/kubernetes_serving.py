"""What manifests need to know of the cluster, and what a release does not say."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from llm_pipeline.config.environment import ClaimMount, Toleration
from llm_pipeline.config.model import ConfigModel, Name, PlainUrl
from llm_pipeline.config.server_ports import ServerPorts
from llm_pipeline.config.store import StoreConfig

_STORE = "/srv/llm-pipeline/store"


class ServingManifestOptions(ConfigModel):
    """How a release is served on a cluster.

    Attributes:
        namespace: Namespace of everything; it must exist.
        image: Image of the server; None for the target's own container. Name its digest, for a tag may move.
        setup_image: Image that holds this package, for the container that lays out the model repository; None for
            `image`, which then must hold it, as the one of `docker/Dockerfile.serving` does.
        store: The artifact store as pods see it. Pods verify signatures if it says whose; they never sign.
        claims: Persistent volume claims that pods read: the store's, unless it is in S3, and public keys. Always
            mounted read-only.
        secrets: Secrets whose keys become environment variables of the setup container: for a store in S3.
        service_account: Service account of the pods.
        image_pull_secrets: Secrets for the images' registry.
        minimum_replicas: Fewest servers.
        maximum_replicas: Most servers.
        surge: Servers beyond the wanted number during an update; with 0 one is taken down first, for clusters without
            spare GPUs.
        autoscaler: A HorizontalPodAutoscaler on the pods' own metric, which needs an adapter for custom metrics; a
            KEDA ScaledObject, which asks Prometheus; or none, for as many servers as `minimum_replicas`.
        active_requests_per_replica: Requests, waiting or running, that a server should have on average; None for 80 %
            of what its engine instances hold at a time, so that a server is added before requests wait.
        prometheus: URL of Prometheus, for KEDA.
        gpu_resource: The resource that GPUs are counted in.
        gpu_product: Value of the label `nvidia.com/gpu.product` of the nodes; None for that of the target's GPU.
        extra_resources: Further resources of each pod, such as network adapters for servers over several nodes.
        node_selector: Further labels that a node must have.
        tolerations: Taints of GPU nodes.
        cpu: CPU request of a pod, in cores; None for none.
        memory_gib: Memory request and limit of a pod, which its shared memory counts towards; None for none.
        user: `uid:gid` of the pods. SSH wants the image to know the user's name, for servers over several nodes.
        ports: Ports of the server.
        startup_minutes: Longest start: fetching, verifying and loading weights.
        drain_seconds: Longest wait for requests in flight when a pod ends.
        endpoint_seconds: Time between the end of new requests to a pod and the signal to end.
        ssh_secret: Secret of type `kubernetes.io/ssh-auth` with the keys `ssh-privatekey` and `ssh-publickey`, by
            which a leader starts ranks on its workers.
        group_topology: Node label, such as one of a rack, whose value the nodes of one server must share, and no other
            server's may have; None for any nodes. For servers over several nodes.
        labels: Further labels of everything.
    """

    namespace: Name = "llm-serving"
    image: str | None = None
    setup_image: str | None = None
    store: StoreConfig = StoreConfig(uri=f"file://{_STORE}")
    claims: tuple[ClaimMount, ...] = (ClaimMount(claim="llm-pipeline-store", path=_STORE),)
    secrets: tuple[Name, ...] = ()
    service_account: Name | None = None
    image_pull_secrets: tuple[Name, ...] = ()
    minimum_replicas: int = Field(default=1, ge=1)
    maximum_replicas: int = Field(default=4, ge=1)
    surge: int = Field(default=1, ge=0)
    autoscaler: Literal["hpa", "keda", "none"] = "hpa"
    active_requests_per_replica: int | None = Field(default=None, ge=1)
    prometheus: PlainUrl = "http://prometheus-operated.monitoring.svc:9090"
    gpu_resource: str = "nvidia.com/gpu"
    gpu_product: str | None = None
    extra_resources: dict[str, int] = Field(default={})
    node_selector: dict[str, str] = Field(default={})
    tolerations: tuple[Toleration, ...] = (Toleration(key="nvidia.com/gpu", effect="NoSchedule"),)
    cpu: float | None = Field(default=None, gt=0.0)
    memory_gib: float | None = Field(default=None, gt=0.0)
    user: str = Field(default="1000:1000", pattern=r"^[1-9]\d*(:\d+)?$")
    ports: ServerPorts = ServerPorts(http=8000, grpc=8001, metrics=8002)
    startup_minutes: int = Field(default=30, ge=1)
    drain_seconds: int = Field(default=60, ge=1)
    endpoint_seconds: int = Field(default=10, ge=1)
    ssh_secret: Name = "llm-pipeline-mpi"  # noqa: S105 - the name of a secret
    group_topology: str | None = None
    labels: dict[str, str] = Field(default={})

    @model_validator(mode="after")
    def _replicas_are_a_range(self) -> Self:
        if self.maximum_replicas < self.minimum_replicas:
            raise ValueError("maximum_replicas is below minimum_replicas")
        return self
