"""Where a staging server runs: on this host, in a container of it, on a cluster, or where one runs already.

The kind decides; ports without a kind are a server of this host.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, field_validator, model_validator

from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.environment import VariableNames
from llm_pipeline.config.installed import or_installed
from llm_pipeline.config.kubernetes_serving import ServingManifestOptions
from llm_pipeline.config.model import ConfigModel, PathText, PlainUrl, PositiveGib, Word
from llm_pipeline.config.server_ports import ServerPorts
from llm_pipeline.config.target import Target


class ServerModel(ConfigModel):
    """What every kind of staging server is; those of other packages derive from it, too, and name a `kind`.

    One on ports of this host derives from `ServerPorts` besides; any other has a field `endpoint`, or its adapter says
    where it answers.

    Attributes:
        is_process_here: It is started on this host, with the deployment's `triton_home` and the interpreter of the
            place; where `start_server` does that, the load test measures the server's memory.
        fetches_release: It fetches the artifacts of a release from the store itself, so it is told their names
            (`Candidate.release`) and given no copies.
        has_triton_api: It speaks Triton's protocols, not only OpenAI's.
        takes_settings: What is staged there is served with the settings of its target.
    """

    is_process_here: ClassVar[bool] = False
    fetches_release: ClassVar[bool] = False
    has_triton_api: ClassVar[bool] = True
    takes_settings: ClassVar[bool] = True

    def problems(self, target: Target) -> Iterator[str]:  # noqa: ARG002 - most servers take every target
        """Why it cannot serve a target, as far as its settings tell; `plan` refuses a release of it."""
        yield from ()

    def warnings(self, target: Target) -> Iterator[str]:  # noqa: ARG002
        """What `plan` says of it besides."""
        yield from ()


class LocalServer(ServerPorts, ServerModel):
    """A tritonserver of this host, on loopback ports: the one in `triton_home`."""

    is_process_here: ClassVar[bool] = True

    kind: Literal["local"] = "local"


class DockerServer(ServerPorts, ServerModel):
    """The target's container on this host, its ports published on loopback.

    Attributes:
        image: Image with its tag or digest; None for the target's own `container`. A tag is resolved to its digest
            before the server starts.
        variables: Names of environment variables that are handed on; whoever may use the engine sees their values.
        memory_gib: Limit of host memory; None for none.
        user: `uid:gid` inside; None for the worker's own, which can read the store.
    """

    kind: Literal["docker"]
    image: Word | None = None
    variables: VariableNames = ()
    memory_gib: PositiveGib | None = None
    user: Word | None = None

    @field_validator("readable")
    @classmethod
    def _none_to_read(cls, readable: tuple[str, ...]) -> tuple[str, ...]:
        if readable:
            raise ValueError("a container reads its image and what is mounted, nothing else of the host: leave it out")
        return readable


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


class ExistingServer(ServerModel):
    """A Triton that runs already, with `--model-control-mode=explicit`: the candidate becomes a version of its own.

    Attributes:
        endpoint: Where it answers. Its headers open restricted APIs: `model-repository` must be allowed.
        control: The protocol that models are loaded through.
        repository: The model repository that it reads: a directory as this host sees it, or `s3://bucket/prefix`.
        link: Whether versions are links into the artifact store instead of copies: for a server that sees the store,
            or this host's cache of it, at the same path.
        s3_endpoint: URL of another S3 API than Amazon's.
        shared: Whether other versions of the model may be serving there. While the candidate is staged, requests that
            name no version get it: only for servers whose users name versions.
    """

    kind: Literal["existing"]
    endpoint: Endpoint
    control: Literal["http", "grpc"] = "http"
    repository: Annotated[PathText, Field(pattern=r"^(/|s3://[a-z0-9]).*")]
    link: bool = False
    s3_endpoint: PlainUrl | None = None
    shared: bool = False

    @model_validator(mode="after")
    def _fits_together(self) -> ExistingServer:
        if self.endpoint.openai_model is not None:
            raise ValueError("a server with OpenAI's API is of kind: openai")
        if self.control == "grpc" and self.endpoint.grpc is None:
            raise ValueError("control: grpc needs endpoint.grpc")
        if self.link and self.repository.startswith("s3://"):
            raise ValueError("there are no links in S3")
        return self


class OpenAiServer(ServerModel):
    """A server with OpenAI's API (`vllm serve`) that somebody else starts with the candidate and stops.

    Nothing is loaded into it: it must serve the release's checkpoint under the name `openai_model` of the endpoint.

    Attributes:
        endpoint: Where it answers, its model, and the variable with its API key.
    """

    has_triton_api: ClassVar[bool] = False
    takes_settings: ClassVar[bool] = False

    kind: Literal["openai"]
    endpoint: Endpoint

    @field_validator("endpoint")
    @classmethod
    def _has_a_model(cls, endpoint: Endpoint) -> Endpoint:
        if endpoint.openai_model is None:
            raise ValueError("openai_model must name the server's model")
        return endpoint


def _local_by_default(value: Any) -> Any:
    if type(value) is ServerPorts:
        return LocalServer(**dict(value))
    return {"kind": "local", **value} if isinstance(value, dict) else value


ServerPlace = Annotated[
    Annotated[
        LocalServer | DockerServer | KubernetesServer | ExistingServer | OpenAiServer, Field(discriminator="kind")
    ],
    BeforeValidator(_local_by_default),
    SerializeAsAny(),
    or_installed("server_controls"),
]
"""One of our kinds, or one that an installed package brings; ports alone are a local server."""
