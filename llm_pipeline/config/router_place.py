"""What splits the users' traffic of one target: an Envoy of ours, one that runs already, a mesh, or a load balancer.

The kind decides; ports without a kind are an Envoy that is started on this host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from llm_pipeline.config.installed import or_installed
from llm_pipeline.config.model import AbsolutePath, AnyPort, ConfigModel, Name, PlainUrl, Port, Word
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.config.slot_server import OpenAiSlot

IP_ADDRESS = r"^[0-9a-fA-F.:]+$"
IpAddress = Annotated[str, Field(pattern=IP_ADDRESS, max_length=45)]


class ServerCertificate(ConfigModel):
    """The certificate that users see.

    It is read again when a file is renamed into its directory, as ACME clients and Kubernetes do; connections that
    stand keep the old one.

    Attributes:
        certificate: PEM file with the chain.
        key: PEM file with its private key, in the same directory.
    """

    certificate: AbsolutePath
    key: AbsolutePath

    @model_validator(mode="after")
    def _one_directory(self) -> ServerCertificate:
        if self.directory != self.key.rpartition("/")[0]:
            raise ValueError("certificate and key must be in one directory, which is watched for new ones")
        return self

    @property
    def directory(self) -> str:
        """The directory of both."""
        return self.certificate.rpartition("/")[0]


class RouterModel(ConfigModel):
    """What every kind is; the class tells what its kind can do. Kinds of other packages derive from it, too.

    Attributes:
        share_unit: Basis points of the traffic that its weights are rounded to.
        keeps_sessions: Requests with the same value of a header can be kept in one slot.
        logs_requests: It keeps a record of single requests that we can read.
        acts_within_seconds: Longest wait for its word that new weights are in force.
        passes_openai: Users may ask by OpenAI's API there; False where their paths are narrowed to Triton's.
        left_to_its_operator: What users have to be kept from there, which its API does not let us do.
    """

    share_unit: ClassVar[int] = 1
    keeps_sessions: ClassVar[bool] = False
    logs_requests: ClassVar[bool] = False
    acts_within_seconds: ClassVar[float] = 60.0
    passes_openai: ClassVar[bool] = False
    left_to_its_operator: ClassVar[str] = ""

    def ports_here(self) -> tuple[int, ...]:
        """Ports that it takes on this host, where we start it; `stop` ends it then, too."""
        return ()

    def users_url(self) -> str:
        """Where users connect, without a path; empty where that is not in the configuration."""
        return ""

    def users_certificate(self) -> str | None:
        """PEM file that the users' port is checked against; None for plain text, or for the system's authorities."""
        return None

    def problems(self, policy: CanaryPolicy) -> Iterator[str]:  # noqa: ARG002 - the class variables say most of it
        """What it cannot do of a policy, beyond what the class variables say."""
        yield from ()

    def slot_problems(self, slots: Iterable[OpenAiSlot]) -> Iterator[str]:  # noqa: ARG002
        """Why it cannot reach servers with OpenAI's API."""
        yield from ()

    def warnings(self, policy: CanaryPolicy) -> Iterator[str]:  # noqa: ARG002
        """What `plan` says of it besides."""
        yield from ()


class UserLimits(ConfigModel):
    """What users may take of the port.

    Attributes:
        largest_request_mib: Larger bodies are refused with 413; smaller ones are kept until their answer begins, so
            that the other slot can answer when one fails. A gRPC stream may carry more, and then is not tried again.
        connections: Open at once, of all users together; further ones are closed.
        streams_per_connection: Requests at once on one HTTP/2 connection; further ones wait.
        header_seconds: Longest time to send a request's headers, and to agree on TLS.
        memory_mib: Of the whole router: near it new requests are refused with 503, and the largest ones are cut.
    """

    largest_request_mib: Annotated[int, Field(ge=1, le=1024)] = 16
    connections: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    streams_per_connection: Annotated[int, Field(ge=1, le=10_000)] = 128
    header_seconds: Annotated[float, Field(ge=0.1, le=600)] = 10.0
    memory_mib: Annotated[int, Field(ge=128, le=1_048_576)] = 2048

    @property
    def largest_request_bytes(self) -> int:
        """The largest body."""
        return self.largest_request_mib * 1024 * 1024


class _Envoy(RouterModel):
    limits: UserLimits = UserLimits()
    trusted_proxies: Annotated[int, Field(ge=0, le=10)] = 0

    if TYPE_CHECKING:  # fields of both kinds, which each of them states where its readers look for them
        port: Port
        address: IpAddress = "127.0.0.1"
        tls: ServerCertificate | None = None

    keeps_sessions: ClassVar[bool] = True
    logs_requests: ClassVar[bool] = True
    acts_within_seconds: ClassVar[float] = 5.0
    passes_openai: ClassVar[bool] = True

    def slot_problems(self, slots: Iterable[OpenAiSlot]) -> Iterator[str]:
        """It has no names to look up, and tells the slots apart by their addresses; it asks them in plain text."""
        for slot in slots:
            if not slot.endpoint.url.startswith("http://") or re.fullmatch(IP_ADDRESS, slot.address[0]) is None:
                yield f"Envoy reaches servers by http:// and an IP address, and a slot's url is {slot.endpoint.url}"

    def users_url(self) -> str:
        """Its port, at its own address."""
        host = "127.0.0.1" if self.address in ("0.0.0.0", "::") else self.address  # noqa: S104 - every address of this host
        host = f"[{host}]" if ":" in host else host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    def users_certificate(self) -> str | None:
        """That of its port."""
        return self.tls.certificate if self.tls is not None else None


class EnvoyPlace(_Envoy):
    """An Envoy that is started on this host, beside the slots.

    Attributes:
        limits: What users may take of its port.
        trusted_proxies: Proxies of yours before it that append a client's address to `x-forwarded-for`; with 0 the
            address of the connection is the client's.
        port: Where users connect: HTTP/1.1, HTTP/2 and gRPC.
        admin_port: Loopback port of its admin interface.
        address: The address that users connect to; `0.0.0.0` for every one of this host.
        tls: The certificate of that port; None for plain text.
    """

    kind: Literal["envoy"] = "envoy"
    port: Port
    admin_port: Port
    address: IpAddress = "127.0.0.1"
    tls: ServerCertificate | None = None

    @property
    def admin_url(self) -> str:
        """URL of its admin interface."""
        return f"http://127.0.0.1:{self.admin_port}"

    def ports_here(self) -> tuple[int, ...]:
        """Both."""
        return (self.port, self.admin_port)


class ExistingEnvoyPlace(_Envoy):
    """An Envoy that runs already and takes its listeners, clusters and routes from a directory that we write.

    It is started with the `bootstrap.json` that is written beside that directory, or one like it. Directory, access log
    and certificate are at the same paths for Envoy and for the workers.

    Attributes:
        limits: What users may take of its port.
        trusted_proxies: Proxies of yours before it that append a client's address to `x-forwarded-for`; with 0 the
            address of the connection is the client's.
        directory: The directory of its xDS files; nothing else may write there.
        admin_url: Its admin interface, as the workers reach it. Whoever reaches that can stop Envoy.
        port: Where users connect: HTTP/1.1, HTTP/2 and gRPC.
        address: The address of that port.
        slot_host: IP address of the slots' servers, as Envoy reaches them.
        access_log: File that Envoy writes and the workers read, for what is judged request by request; Envoy runs with
            `--file-flush-interval-msec 500`, or every look waits ten seconds for its lines.
        tls: The certificate of the port; None for plain text.
    """

    kind: Literal["existing_envoy"]
    directory: AbsolutePath
    admin_url: Annotated[PlainUrl, Field(pattern=r"^http://[^/]+$")]
    port: Port
    address: IpAddress = "127.0.0.1"
    slot_host: IpAddress = "127.0.0.1"
    access_log: AbsolutePath
    tls: ServerCertificate | None = None

    @model_validator(mode="after")
    def _log_is_elsewhere(self) -> ExistingEnvoyPlace:
        if self.access_log.startswith(f"{self.directory}/"):
            raise ValueError("access_log must not be in the directory that Envoy watches")
        return self


class Service(ConfigModel):
    """A Kubernetes Service that leads to a slot's servers."""

    name: Name
    port: AnyPort


class BothSlots(ConfigModel):
    """What a router or a metric source knows each slot of a place by: fields `blue` and `green`, which differ."""

    what: ClassVar[str]

    @model_validator(mode="after")
    def _are_two(self) -> Self:
        slots = self.model_dump()
        if slots["blue"] == slots["green"]:
            raise ValueError(f"blue and green must be two {self.what}")
        return self


class Services(BothSlots):
    """The Service of each slot."""

    what: ClassVar[str] = "Services"
    blue: Service
    green: Service


class GatewayApiPlace(RouterModel):
    """An HTTPRoute of the Gateway API, whose weights are moved.

    It keeps no sessions and no record of requests: policies with a `session_header` are refused, `metrics` is needed.

    Attributes:
        namespace: Its namespace.
        route: Its name.
        rule: Index of the rule whose backends are the slots.
        backends: The Service of each slot.
        context: Context of the kubeconfig; None for the pod's own service account, or the current context.
    """

    left_to_its_operator: ClassVar[str] = (
        "paths beyond inference, health and metadata, where the rule has matches of its own and for gRPC; too large "
        "requests, and too many connections"
    )

    kind: Literal["gateway_api"]
    namespace: Name
    route: Name
    rule: int = Field(default=0, ge=0, le=1000)
    backends: Services
    context: Word | None = None


class Destination(ConfigModel):
    """Where Istio finds a slot: a host, and the subset that a DestinationRule names, if any."""

    host: Word
    subset: Word | None = None
    port: AnyPort | None = None


class Destinations(BothSlots):
    """The destination of each slot."""

    what: ClassVar[str] = "destinations"
    blue: Destination
    green: Destination


class IstioPlace(RouterModel):
    """A VirtualService of Istio, whose weights are moved, in whole percents.

    It keeps no sessions and no record of requests: policies with a `session_header` are refused, `metrics` is needed.

    Attributes:
        namespace: Its namespace.
        virtual_service: Its name.
        route: Name of the HTTP route in it; None where it has one only.
        backends: The destination of each slot.
        context: Context of the kubeconfig; None for the pod's own service account, or the current context.
    """

    share_unit: ClassVar[int] = 100

    left_to_its_operator: ClassVar[str] = (
        "paths beyond inference, health and metadata, where the route has matches of its own and for gRPC; too large "
        "requests, and too many connections"
    )

    kind: Literal["istio"]
    namespace: Name
    virtual_service: Name
    route: Word | None = None
    backends: Destinations
    context: Word | None = None


_ELB = r"^arn:aws[a-z-]*:elasticloadbalancing:[a-z0-9-]+:\d{12}:"
TargetGroupArn = Annotated[str, Field(pattern=_ELB + r"targetgroup/[A-Za-z0-9-]+/[0-9a-f]+$", max_length=2048)]
ListenerRuleArn = Annotated[
    str,
    Field(pattern=_ELB + r"listener-rule/app/[A-Za-z0-9-]+/[0-9a-f]+/[0-9a-f]+/[0-9a-f]+$", max_length=2048),
]


class TargetGroups(BothSlots):
    """The target group of each slot."""

    what: ClassVar[str] = "target groups"
    blue: TargetGroupArn
    green: TargetGroupArn


class AwsAlbPlace(RouterModel):
    """A rule of an Application Load Balancer, whose weights of target groups are moved, in tenths of a percent.

    It keeps no sessions and no record of requests: policies with a `session_header` are refused, `metrics` is needed.
    Credentials come from the usual chain of AWS.

    Attributes:
        rule: ARN of a rule of its own; a listener's default rule cannot be changed by its ARN.
        target_groups: The target group of each slot.
        region: Its region; None for the environment's.
        endpoint_url: URL of another API than Amazon's; for tests.
    """

    share_unit: ClassVar[int] = 10

    passes_openai: ClassVar[bool] = True
    left_to_its_operator: ClassVar[str] = (
        "every path but those of inference, health and metadata: its rule's conditions are yours; too large requests, "
        "and too many connections"
    )

    kind: Literal["aws_alb"]
    rule: ListenerRuleArn
    target_groups: TargetGroups
    region: Word | None = None
    endpoint_url: PlainUrl | None = None


def _envoy_by_default(value: Any) -> Any:
    return {"kind": "envoy", **value} if isinstance(value, dict) else value


RouterPlace = Annotated[
    Annotated[
        EnvoyPlace | ExistingEnvoyPlace | GatewayApiPlace | IstioPlace | AwsAlbPlace, Field(discriminator="kind")
    ],
    BeforeValidator(_envoy_by_default),
    SerializeAsAny(),
    or_installed("routers"),
]
"""One of our kinds, or one that an installed package brings; ports alone are an Envoy of this host."""
