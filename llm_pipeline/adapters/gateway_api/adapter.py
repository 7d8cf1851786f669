"""The settings of the router `gateway_api`, what opens it, and its probe."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from llm_pipeline.base.adapters import OnCall
from llm_pipeline.canary.router import remote
from llm_pipeline.config.model import AnyPort, ConfigModel, Name, Word
from llm_pipeline.config.router_place import BothSlots, RouterModel


class Service(ConfigModel):
    """A Kubernetes Service that leads to a slot's servers.

    Attributes:
        port: Its port of OpenAI's API; Triton's own is no port for strangers, whose JSON can end it.
    """

    name: Name
    port: AnyPort


class Services(BothSlots):
    """The Service of each slot."""

    what: ClassVar[str] = "Services"
    blue: Service
    green: Service


class GatewayApiPlace(RouterModel):
    """An HTTPRoute of the Gateway API, whose weights are moved.

    It keeps no record of requests: `metrics` is needed.

    Attributes:
        namespace: Its namespace.
        route: Its name.
        rule: Index of the rule whose backends are the slots.
        backends: The Service of each slot.
        context: Context of the kubeconfig; None for the pod's own service account, or the current context.
    """

    left_to_its_operator: ClassVar[str] = (
        "paths beyond OpenAI's API, where the rule has matches of its own and for gRPC; too large requests, and too "
        "many connections"
    )

    kind: Literal["gateway_api"]
    namespace: Name
    route: Name
    rule: int = Field(default=0, ge=0, le=1000)
    backends: Services
    context: Word | None = None


ADAPTER = remote(GatewayApiPlace, OnCall("llm_pipeline.adapters.gateway_api.router:GatewayApiRouter"))
