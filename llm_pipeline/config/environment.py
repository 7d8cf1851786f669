"""Environments: where the process of a stage starts. An interpreter of this host, a container, or a pod.

A stage names its environment (`control`, `model`, or the one that a target names); the deployment says what that is.
A plain string is short for an interpreter of this host.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny

from llm_pipeline.config.installed import or_installed
from llm_pipeline.config.model import (
    ConfigModel,
    Cores,
    Gpus,
    HostPath,
    Labels,
    Name,
    Names,
    PathText,
    PositiveGib,
    PositiveMinutes,
    VariableName,
    Word,
)

VariableNames = Annotated[tuple[VariableName, ...], Field(max_length=256)]


class EnvironmentModel(ConfigModel):
    """What every kind of environment is; those of other packages derive from it, too, and name a `runner`."""

    def interpreter_here(self) -> str | None:
        """Its interpreter, where that is one of this host: commands and servers' code run in it; None elsewhere."""
        return None

    def problems(self) -> Iterator[str]:
        """Why no stage can run there, as far as its settings tell; `plan` refuses a release that needs it."""
        yield from ()

    def warnings(self) -> Iterator[str]:
        """What `plan` says of it besides."""
        yield from ()


class Interpreter(EnvironmentModel):
    """A Python interpreter of the host that the Airflow worker runs on.

    Attributes:
        python: Its executable.
    """

    runner: Literal["process"] = "process"
    python: HostPath

    def interpreter_here(self) -> str:
        """Its executable."""
        return self.python


class Mount(ConfigModel):
    """A directory of the host inside a container.

    Attributes:
        source: Directory of the host.
        path: Where the container sees it; the same path if None.
        writable: Whether the stage may write there. The store and the work directory must be.
    """

    source: HostPath
    path: PathText | None = None
    writable: bool = False


class DockerEnvironment(EnvironmentModel):
    """A container of the Docker engine on the worker's host.

    Attributes:
        image: Image with its tag or digest; None for the target's own `container`. A tag is resolved to its digest
            before anything starts, and that digest is run and recorded.
        python: The interpreter inside the image that has this package.
        gpus: GPUs of the container: their number, or `all`.
        mounts: Directories besides the store and the work directory, which are always there.
        variables: Names of environment variables that are handed on; their values are in no configuration, but whoever
            may use the engine sees them (`docker inspect`).
        memory_gib: Limit of host memory; None for none.
        shared_memory_gib: Size of `/dev/shm`.
        network: Network of the container, in Docker's words.
        user: `uid:gid` inside; None for the worker's own.
    """

    runner: Literal["docker"]
    image: Word | None = None
    python: PathText = "python3"
    gpus: Gpus | Literal["all"] = 0
    mounts: Annotated[tuple[Mount, ...], Field(max_length=256)] = ()
    variables: VariableNames = ()
    memory_gib: PositiveGib | None = None
    shared_memory_gib: PositiveGib = 1.0
    network: Word = "bridge"
    user: Word | None = None


class Toleration(ConfigModel):
    """A taint that the pod may be scheduled on all the same, in Kubernetes' words."""

    key: Word
    operator: Literal["Exists", "Equal"] = "Exists"
    value: Word | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class ClaimMount(ConfigModel):
    """A persistent volume claim inside the pod.

    Attributes:
        claim: Its name.
        path: Where the pod sees it.
        writable: Whether the stage may write there.
    """

    claim: Name
    path: PathText
    writable: bool = False


Tolerations = Annotated[tuple[Toleration, ...], Field(max_length=64)]
Claims = Annotated[tuple[ClaimMount, ...], Field(max_length=256)]


class KubernetesEnvironment(EnvironmentModel):
    """A Kubernetes Job of one pod. The store must be one that pods reach: S3, or a claim at the same path.

    Attributes:
        namespace: Namespace of the Job.
        context: Context of the kubeconfig; None for the pod's own service account, or the current context.
        image: Image with its tag or digest; None for the target's own `container`. It is recorded as it is named here,
            so name the digest.
        python: The interpreter inside the image that has this package.
        gpus: GPUs of the pod.
        gpu_resource: The resource that GPUs are counted in.
        cpu: CPU request in cores; None for none.
        memory_gib: Memory request and limit; None for none.
        shared_memory_gib: Size of `/dev/shm`; in memory, so it counts towards `memory_gib`.
        node_selector: Labels that a node must have.
        tolerations: Taints of GPU nodes, mostly.
        claims: Persistent volume claims, by where the pod sees them.
        secrets: Secrets whose keys become environment variables of the pod.
        user: `uid:gid` of the pod, and the owner of its volumes; None for the image's own, which must not be root.
        service_account: Service account of the pod.
        image_pull_secrets: Secrets for the image's registry.
        labels: Further labels of Job and pod.
        start_timeout_minutes: Longest wait for a node and the image.
        time_limit_minutes: Longest run; None for a little more than the stage's own limit, the policy's
            `time_limit_hours`.
    """

    runner: Literal["kubernetes"]
    namespace: Name
    context: Word | None = None
    image: Word | None = None
    python: PathText = "python3"
    gpus: Gpus = 0
    gpu_resource: Word = "nvidia.com/gpu"
    cpu: Cores | None = None
    memory_gib: PositiveGib | None = None
    shared_memory_gib: PositiveGib = 1.0
    node_selector: Labels = Field(default={})
    tolerations: Tolerations = ()
    claims: Claims = ()
    secrets: Names = ()
    user: str | None = Field(default="1000:1000", pattern=r"^[1-9]\d*(:\d+)?$", max_length=32)
    service_account: Name | None = None
    image_pull_secrets: Names = ()
    labels: Labels = Field(default={})
    start_timeout_minutes: PositiveMinutes = 30.0
    time_limit_minutes: PositiveMinutes | None = None


def _from_path(value: Any) -> Any:
    return {"runner": "process", "python": value} if isinstance(value, str) else value


Environment = Annotated[
    Annotated[Interpreter | DockerEnvironment | KubernetesEnvironment, Field(discriminator="runner")],
    BeforeValidator(_from_path),
    SerializeAsAny(),
    or_installed("runners", key="runner"),
]
"""One of our kinds, or one that an installed package brings; a path alone is an interpreter of this host."""
