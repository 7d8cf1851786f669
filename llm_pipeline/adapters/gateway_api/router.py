"""An HTTPRoute of the Gateway API as a traffic router: weighted backends in one of its rules.

Weights are written in basis points: the API takes any proportion, and a gateway may round it on its own, which only the
measured split shows. Its controller acknowledges a generation in the route's status, which says that it has accepted
the route; the API has no field for when its proxies act on it.
Persistent sessions are not in the standard channel and lead to one server, not to one arm: a header cannot be used.
"""

from __future__ import annotations

from typing import Any

from llm_pipeline.adapters.gateway_api.adapter import GatewayApiPlace, Service
from llm_pipeline.adapters.kubernetes.custom_object import Document, KubernetesObject, Resource
from llm_pipeline.adapters.kubernetes.routes import KubernetesRouter, generation_of, revision_of
from llm_pipeline.canary import users_paths
from llm_pipeline.canary.router import RouterRejected, RouterUnavailable, SlotName

HTTP_ROUTE = Resource("gateway.networking.k8s.io", "v1", "httproutes")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices")

_ACCEPTED, _RESOLVED = "Accepted", "ResolvedRefs"
_IN_PART = "PartiallyInvalid"
_EVERYTHING = [{"path": {"type": "PathPrefix", "value": "/"}}]
"""What the API fills in for a rule without matches."""

_PARENT_KEYS = ("group", "kind", "namespace", "name", "sectionName", "port")


class GatewayApiRouter(KubernetesRouter):
    """The `TrafficRouter` port on one rule of an HTTPRoute."""

    def __init__(self, place: GatewayApiPlace) -> None:
        """Creates the client without sending a request.

        Raises:
            Unsupported: The Kubernetes client is not installed in this interpreter.
            ConfigError: There is no such context, or no kubeconfig.
        """
        super().__init__(KubernetesObject(HTTP_ROUTE, place.namespace, place.route, place.context), place)
        self._place = place
        self._services: dict[SlotName, Service] = {"blue": place.backends.blue, "green": place.backends.green}

    def converged(self, revision: str) -> bool | None:
        """Whether every gateway that the route names has accepted its generation.

        Raises:
            RouterRejected: A gateway did not accept it, left rules out, or finds a backend it cannot use: that
                backend's share of the requests would be answered with 500.
        """
        try:
            document = self._object.get()
        except RouterUnavailable:
            return None
        if revision_of(document) != revision:
            return False
        named = {self._parent(reference) for reference in document["spec"].get("parentRefs") or ()}
        answers = [
            (parent, self._accepts(status, generation_of(revision)))
            for status in (document.get("status") or {}).get("parents") or ()
            if (parent := self._parent(status["parentRef"])) in named  # others are left over from parents before
        ]
        heard = {parent for parent, _ in answers}
        return bool(named) and heard == named and all(accepted for _, accepted in answers)

    def usable(self, slot: SlotName) -> bool | None:
        """Whether the slot's Service has a ready endpoint; None if this account may not read that."""
        try:
            found = self._object.neighbours(ENDPOINT_SLICES, f"kubernetes.io/service-name={self._services[slot].name}")
        except (RouterUnavailable, RouterRejected):
            return None
        endpoints = [endpoint for one in found for endpoint in one.get("endpoints") or ()]
        return any((endpoint.get("conditions") or {}).get("ready") is not False for endpoint in endpoints)

    def _rule(self, document: Document) -> Document:
        rules: list[Document] = document["spec"].get("rules") or []
        if len(rules) <= self._place.rule:
            raise RouterRejected(f"the route has no rule {self._place.rule}", where=self._where)
        return rules[self._place.rule]

    def _backends(self, document: Document) -> list[Document]:
        backends: list[Document] = self._rule(document).setdefault("backendRefs", [])
        return backends

    def _limit(self, document: Document) -> None:
        rule = self._rule(document)
        if (rule.get("matches") or _EVERYTHING) == _EVERYTHING:
            rule["matches"] = [{"path": {"type": "Exact", "value": path}} for path in users_paths.HTTP_PATHS]

    def _slot_of(self, backend: Document) -> SlotName | None:
        if backend.get("group") or backend.get("kind", "Service") != "Service":
            return None
        if backend.get("namespace", self._object.namespace) != self._object.namespace:
            return None
        for slot, service in self._services.items():
            if (backend["name"], backend.get("port")) == (service.name, service.port):
                return slot
        return None

    def _new_backend(self, slot: SlotName) -> Document:
        service = self._services[slot]
        return {"group": "", "kind": "Service", "name": service.name, "port": service.port}

    def _shares(self, backends: list[Document]) -> list[int]:
        return [int(backend.get("weight", 1)) for backend in backends]

    def _parent(self, reference: Document) -> tuple[Any, ...]:
        """What names a gateway, or one of its listeners; the API fills in defaults."""
        defaults = {"group": HTTP_ROUTE.group, "kind": "Gateway", "namespace": self._object.namespace}
        return tuple({**defaults, **reference}.get(key) for key in _PARENT_KEYS)

    def _accepts(self, parent: Document, generation: int) -> bool:
        conditions = {condition["type"]: condition for condition in parent.get("conditions") or ()}
        current = {
            kind: condition
            for kind, condition in conditions.items()
            if int(condition.get("observedGeneration", 0)) >= generation
        }
        bad = [current[kind] for kind in (_ACCEPTED, _RESOLVED) if current.get(kind, {}).get("status") == "False"]
        bad += [current[_IN_PART]] if current.get(_IN_PART, {}).get("status") == "True" else []
        if bad:
            told = "; ".join(f"{one['type']}: {one.get('reason', '')}: {one.get('message', '')}" for one in bad)
            raise RouterRejected(f"{parent.get('controllerName')} did not accept the route: {told}", where=self._where)
        return all(current.get(kind, {}).get("status") == "True" for kind in (_ACCEPTED, _RESOLVED))
