"""The settings of an Envoy that is started here as a router, and what opens it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from llm_pipeline.base.adapters import OnCall
from llm_pipeline.canary.router import RouterAdapter
from llm_pipeline.config.model import AbsolutePath, ConfigModel, Port
from llm_pipeline.config.router_place import RouterModel
from llm_pipeline.config.server_place import OpenAiSlot

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


MOST_CONNECTIONS = 10_000
"""Open at once, of all users together; further ones are closed."""

LARGEST_REQUEST_MIB = 16
"""Larger bodies are refused with 413; smaller ones are kept until their answer begins, so that the other slot can
answer when one fails."""

LARGEST_REQUEST_BYTES = LARGEST_REQUEST_MIB * 1024 * 1024
MEMORY_BYTES = 2 * 1024**3
"""Of the whole router: near it new requests are refused with 503, and the largest ones are cut."""


class EnvoyPlace(RouterModel):
    """An Envoy that is started on this host, beside the slots.

    Attributes:
        port: Where users connect: HTTP/1.1, HTTP/2 and gRPC.
        admin_port: Loopback port of its admin interface.
        address: The address that users connect to; `0.0.0.0` for every one of this host.
        tls: The certificate of that port; None for plain text.
        only_openai: Users ask by OpenAI's API alone, and not by Triton's routes, which other servers have not.
    """

    kind: Literal["envoy"] = "envoy"
    port: Port
    admin_port: Port
    address: IpAddress = "127.0.0.1"
    tls: ServerCertificate | None = None
    only_openai: bool = False

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

    @property
    def offers_triton(self) -> bool:
        return not self.only_openai

    @property
    def admin_url(self) -> str:
        """URL of its admin interface."""
        return f"http://127.0.0.1:{self.admin_port}"

    def ports_here(self) -> tuple[int, ...]:
        """Both."""
        return (self.port, self.admin_port)


_ROUTER = "llm_pipeline.adapters.envoy.router"
_router_of = OnCall(f"{_ROUTER}:router_of")
ADAPTER = RouterAdapter(
    config=EnvoyPlace,
    open=OnCall(f"{_ROUTER}:start_router"),
    as_it_is=lambda _place, _slots, state: _router_of(state),  # what it was started with counts
    probe=OnCall(f"{_ROUTER}:probe"),
)
