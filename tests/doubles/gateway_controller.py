"""A double of a gateway's controller: it acknowledges one HTTPRoute, as the specification fixes it.

That is: backends that are not there, and the conditions with the generation. No requests pass through it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from custom_resources import CustomResources

NAME = "example.com/gateway"


class GatewayController:
    """Looks at the route again and again until it is stopped.

    Attributes:
        idle: It sees nothing any more, as one that is down.
        condition: What it says of the next routes besides, e.g. of rules that it left out.
    """

    def __init__(self, api: CustomResources, namespace: str, route: str, services: Collection[str]) -> None:
        self._api, self._namespace, self._route, self._services = api, namespace, route, services
        self.idle = False
        self.condition: dict[str, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(5)

    def _run(self) -> None:
        while not self._over.wait(0.01):
            if not self.idle:
                self._look()

    def _look(self) -> None:
        try:
            document = self._api.object("httproutes", self._namespace, self._route)
        except KeyError:
            return
        generation = document["metadata"]["generation"]
        seen = [
            condition["observedGeneration"]
            for parent in document.get("status", {}).get("parents", [])
            for condition in parent["conditions"]
        ]
        if seen and min(seen) == generation:
            return
        backends = document["spec"]["rules"][0]["backendRefs"]
        missing = [one["name"] for one in backends if one["name"] not in self._services]
        said = [
            {"type": "Accepted", "status": "True", "reason": "Accepted"},
            {"type": "ResolvedRefs", "status": "False", "reason": "BackendNotFound", "message": f"no {missing}"}
            if missing
            else {"type": "ResolvedRefs", "status": "True", "reason": "ResolvedRefs"},
            *([self.condition] if self.condition else []),
        ]
        stamp = {"observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z"}
        conditions = [{"message": "", **one, **stamp} for one in said]
        parents = [
            {"parentRef": reference, "controllerName": NAME, "conditions": conditions}
            for reference in document["spec"]["parentRefs"]
        ]
        self._api.write_status("httproutes", self._namespace, self._route, {"parents": parents})
