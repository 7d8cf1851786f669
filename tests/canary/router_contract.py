"""The routers that the contract is kept by, and the hands that disturb them; see `test_router_contract.py`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from custom_resources import CustomResources, Document

from llm_pipeline.adapters.envoy.router import EnvoyRouter
from llm_pipeline.adapters.envoy.xds import replace_json
from llm_pipeline.adapters.gateway_api.adapter import GatewayApiPlace
from llm_pipeline.adapters.gateway_api.router import GatewayApiRouter
from llm_pipeline.canary.router import ALL, RouteState, TrafficRouter, all_to

NAMESPACE = "serving"
GATEWAY_PLACE = GatewayApiPlace.model_validate(
    {
        "kind": "gateway_api", "namespace": NAMESPACE, "route": "llm", "rule": 0,
        "backends": {"blue": {"name": "llm-blue", "port": 8000}, "green": {"name": "llm-green", "port": 8000}},
    }
)  # fmt: skip
HTTP_ROUTE: Document = {
    "apiVersion": "gateway.networking.k8s.io/v1",
    "kind": "HTTPRoute",
    "metadata": {"namespace": NAMESPACE, "name": "llm", "labels": {"team": "ml"}},
    "spec": {
        "parentRefs": [{"name": "public", "sectionName": "https"}],
        "hostnames": ["llm.example.com"],
        "rules": [{"timeouts": {"request": "0s"}, "backendRefs": [{"name": "llm-blue", "port": 8000}]}],
    },
}


def split(green: int, epoch: int = 1, **changes: Any) -> RouteState:
    values = {"weights": {"blue": ALL - green, "green": green}, "candidate": "green", "owner": "t", "epoch": epoch}
    return RouteState(**{**values, **changes})


class EnvoySubject:
    """A router with all traffic on blue that nobody of ours ever wrote; `meddle` is another hand, `away` breaks it."""

    def __init__(self, router: EnvoyRouter) -> None:
        self.router: EnvoyRouter = router
        router.replace_routes(all_to("blue", owner="nobody", epoch=0))

    def meddle(self) -> None:
        routes = json.loads(self.router.files.routes.read_text())
        for route in routes["resources"][0]["virtual_hosts"][0]["routes"]:
            for arm in route.get("route", {}).get("weighted_clusters", {}).get("clusters", ()):
                arm["weight"] = ALL // 2
        replace_json(self.router.files.routes, routes)

    def away(self) -> EnvoyRouter:
        self.router.files.routes.write_text("not one of ours")
        return self.router


class KubernetesSubject:
    """The same of a route in a cluster."""

    def __init__(self, api: CustomResources, plural: str, document: Document, router: TrafficRouter) -> None:
        self.api, self.plural, self.router = api, plural, router
        api.heal()
        api.apply(plural, document)

    @property
    def document(self) -> Document:
        return self.api.object(self.plural, NAMESPACE, "llm")

    def edit(self, change: Callable[[Document], None]) -> None:
        self.api.edit(self.plural, NAMESPACE, "llm", change)

    def backends(self, document: Document) -> list[Document]:
        found: list[Document] = document["spec"]["rules"][0]["backendRefs"]
        return found

    def meddle(self) -> None:
        def half(document: Document) -> None:
            for backend in self.backends(document):
                backend["weight"] = 50

        self.edit(half)

    def away(self) -> TrafficRouter:
        self.api.answer(503, times=100)
        return self.router


Subject = EnvoySubject | KubernetesSubject


def gateway_subject(api: CustomResources) -> KubernetesSubject:
    return KubernetesSubject(api, "httproutes", HTTP_ROUTE, GatewayApiRouter(GATEWAY_PLACE))
