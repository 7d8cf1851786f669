"""What manifests need to know of the cluster, and what a release does not say."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from llm_pipeline.config.environment import ClaimMount, Claims, Toleration, Tolerations
from llm_pipeline.config.model import ConfigModel, Instances, Labels, Name, Names, PositiveGib, Word
from llm_pipeline.config.server_place import ServerPorts
from llm_pipeline.config.store import Store, store_settings

_STORE = "/srv/llm-pipeline/store"


class ServingManifestOptions(ConfigModel):
    """How a release is served on a cluster.

    For servers over several nodes the namespace must hold the secret `llm-pipeline-mpi` of type
    `kubernetes.io/ssh-auth`, with the keys `ssh-privatekey` and `ssh-publickey`, by which a leader starts ranks on its
    workers.

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
        minimum_replicas: Fewest servers.
        maximum_replicas: Most servers.
        autoscaler: A HorizontalPodAutoscaler on the pods' own metric, which needs an adapter for custom metrics and
            adds a server when those there hold 80 % of the requests that they can; or none, for as many servers as
            `minimum_replicas`.
        node_selector: Labels that a node must have; `nvidia.com/gpu.product` is that of the target's GPU unless it is
            here.
        tolerations: Taints of GPU nodes.
        memory_gib: Memory request and limit of a pod, which its shared memory counts towards; None for none.
        user: `uid:gid` of the pods. SSH wants the image to know the user's name, for servers over several nodes.
        ports: Ports of the server; behind `openai` a second container speaks OpenAI's API, from `setup_image`.
        startup_minutes: Longest start: fetching, verifying and loading weights.
        drain_seconds: Longest wait for requests in flight when a pod ends.
    """

    namespace: Name = "llm-serving"
    image: Word | None = None
    setup_image: Word | None = None
    store: Store = store_settings(f"file://{_STORE}")
    claims: Claims = (ClaimMount(claim="llm-pipeline-store", path=_STORE),)
    secrets: Names = ()
    service_account: Name | None = None
    minimum_replicas: Instances = 1
    maximum_replicas: Instances = 4
    autoscaler: Literal["hpa", "none"] = "hpa"
    node_selector: Labels = Field(default={})
    tolerations: Tolerations = (Toleration(key="nvidia.com/gpu", effect="NoSchedule"),)
    memory_gib: PositiveGib | None = None
    user: str = Field(default="1000:1000", pattern=r"^[1-9]\d*(:\d+)?$", max_length=32)
    ports: ServerPorts = ServerPorts(http=8000, grpc=8001, metrics=8002, openai=8003)
    startup_minutes: int = Field(default=30, ge=1, le=1_440)
    drain_seconds: int = Field(default=60, ge=1, le=86_400)

    @model_validator(mode="after")
    def _replicas_are_a_range(self) -> Self:
        if self.maximum_replicas < self.minimum_replicas:
            raise ValueError("maximum_replicas is below minimum_replicas")
        return self
