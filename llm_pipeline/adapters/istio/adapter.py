"""The settings of the router `istio`, what opens it, and its probe."""

from __future__ import annotations

from typing import ClassVar, Literal

from llm_pipeline.base.adapters import OnCall
from llm_pipeline.canary.router_adapter import remote
from llm_pipeline.config.model import AnyPort, ConfigModel, Name, Word
from llm_pipeline.config.router_place import BothSlots, RouterModel


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


ADAPTER = remote(IstioPlace, OnCall("llm_pipeline.adapters.istio.router:IstioRouter"))
