"""The settings of Envoy as a router, one that is started here and one that runs already, and what opens them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from llm_pipeline.base.adapters import Adapter, OnCall
from llm_pipeline.canary.router_adapter import RouterAdapter
from llm_pipeline.config.metric_source import MetricSourceModel
from llm_pipeline.config.model import AbsolutePath, ConfigModel, PlainUrl, Port
from llm_pipeline.config.router_place import RouterModel, RouterPlace
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


_FOLDER = "llm_pipeline.adapters.envoy"
STARTED = RouterAdapter(
    config=EnvoyPlace,
    open=OnCall(f"{_FOLDER}.process:start_router"),
    as_it_is=OnCall(f"{_FOLDER}.process:router_as_it_is"),
)
EXISTING = RouterAdapter(
    config=ExistingEnvoyPlace,
    open=OnCall(f"{_FOLDER}.existing:feed_router"),
    as_it_is=OnCall(f"{_FOLDER}.existing:fed_router"),
)


class EnvoySource(MetricSourceModel):
    """The statistics of the Envoy that splits the traffic: counts of requests and errors, no latencies."""

    kind: Literal["envoy"]

    def problems(self, router: RouterPlace) -> Iterator[str]:
        """Only an Envoy has them."""
        if not isinstance(router, EnvoyPlace | ExistingEnvoyPlace):
            yield f"metrics envoy are an Envoy's statistics, and the router is {router.kind}"


_STATISTICS = OnCall(f"{_FOLDER}.statistics:EnvoyStatistics")
STATISTICS = Adapter(config=EnvoySource, open=lambda _source, _place, router: _STATISTICS(router))
