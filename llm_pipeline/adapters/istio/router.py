"""A VirtualService of Istio as a traffic router: weighted destinations of one of its HTTP routes.

Weights are whole percents: Istio takes other proportions since its weights need no longer sum to 100, but older
versions refuse them. Nothing says when sidecars and gateways act on a route. So `converged` means that the API server
has stored it, and the sample-ratio test of the canary measures the rest.
Consistent hashing belongs to a DestinationRule and works within one destination: a header cannot be used.
"""

from __future__ import annotations

from llm_pipeline.adapters.istio.adapter import Destination, IstioPlace
from llm_pipeline.adapters.kubernetes.custom_object import Document, KubernetesObject, Resource
from llm_pipeline.adapters.kubernetes.routes import KubernetesRouter, revision_of
from llm_pipeline.canary import users_paths
from llm_pipeline.canary.router import RouterRejected, RouterUnavailable, SlotName

VIRTUAL_SERVICE = Resource("networking.istio.io", "v1", "virtualservices")


class IstioRouter(KubernetesRouter):
    """The `TrafficRouter` port on one HTTP route of a VirtualService."""

    def __init__(self, place: IstioPlace) -> None:
        """Creates the client without sending a request.

        Raises:
            Unsupported: The Kubernetes client is not installed in this interpreter.
            ConfigError: There is no such context, or no kubeconfig.
        """
        service = KubernetesObject(VIRTUAL_SERVICE, place.namespace, place.virtual_service, place.context)
        super().__init__(service, place)
        self._place = place
        self._destinations: dict[SlotName, Destination] = {"blue": place.backends.blue, "green": place.backends.green}

    def converged(self, revision: str) -> bool | None:
        """Whether the API server has the revision; only the measured split shows what the proxies do."""
        try:
            return revision_of(self._object.get()) == revision
        except RouterUnavailable:
            return None

    def _route(self, document: Document) -> Document:
        routes: list[Document] = document["spec"].get("http") or []
        name = self._place.route
        found = [route for route in routes if name is None or route.get("name") == name]
        if len(found) != 1:
            what = "HTTP routes" if name is None else f"HTTP routes of the name {name}"
            raise RouterRejected(
                f"it has {len(found)} {what}, not one", where=self._where, hint="name one of its routes in the place"
            )
        return found[0]

    def _backends(self, document: Document) -> list[Document]:
        backends: list[Document] = self._route(document).setdefault("route", [])
        return backends

    def _limit(self, document: Document) -> None:
        route = self._route(document)
        if not route.get("match"):
            route["match"] = [{"uri": {"exact": path}} for path in users_paths.HTTP_PATHS]

    def _slot_of(self, backend: Document) -> SlotName | None:
        found = backend["destination"]
        told = (found["host"], found.get("subset"), (found.get("port") or {}).get("number"))
        for slot, destination in self._destinations.items():
            if told == (destination.host, destination.subset, destination.port):
                return slot
        return None

    def _new_backend(self, slot: SlotName) -> Document:
        destination = self._destinations[slot]
        new: Document = {"host": destination.host}
        new |= {"subset": destination.subset} if destination.subset else {}
        new |= {"port": {"number": destination.port}} if destination.port else {}
        return {"destination": new}

    def _shares(self, backends: list[Document]) -> list[int]:
        if len(backends) == 1:
            return [1]  # a single destination gets everything, whatever its weight
        return [int(backend.get("weight", 0)) for backend in backends]
