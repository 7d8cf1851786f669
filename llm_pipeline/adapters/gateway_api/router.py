"""An HTTPRoute of the Gateway API as a traffic router: weighted backends in one of its rules.

Annotations of the route say who moves traffic with which epoch. The route is read, changed and put back at the version
that was read (lists in routes are atomic, so a patch would not be safer), so nobody can come between the look at the
epoch and the write: an old owner is fenced for certain. The revision is the route's generation and a stamp of our own
write; the API's own `resourceVersion` would change with every status that a gateway writes.

Weights are written in basis points: the API takes any proportion, and a gateway may round it on its own, which only the
measured split shows. Its controller acknowledges a generation in the route's status, which says that it has accepted
the route; the API has no field for when its proxies act on it.
Nothing fails over: a candidate's failures are the users'. Whatever applies manifests to the cluster (Argo CD, Flux)
has to leave these weights and annotations alone, or each of its rounds is a change by another hand.
"""

from __future__ import annotations

import contextlib
import copy
import time
from typing import Any, NoReturn

from pydantic import ValidationError

from llm_pipeline.adapters.gateway_api.adapter import GatewayApiPlace, Service
from llm_pipeline.adapters.kubernetes.api import CONFLICT, NOT_ALLOWED, NOT_FOUND, Cluster, Json
from llm_pipeline.base.errors import Fenced, Transient
from llm_pipeline.canary import users_paths
from llm_pipeline.canary.router import (
    ALL,
    SLOTS,
    RouterConflict,
    RouterRejected,
    RouterUnavailable,
    RouteState,
    SlotName,
    TrafficRouter,
)

OWNER = "llm-pipeline/owner"
EPOCH = "llm-pipeline/epoch"
CANDIDATE = "llm-pipeline/candidate"
WRITTEN = "llm-pipeline/written"

_TRIES = 5
_REFUSED = (400, NOT_FOUND, 405, 413, 415, 422)
_GROUP = "gateway.networking.k8s.io"
_ACCEPTED, _RESOLVED = "Accepted", "ResolvedRefs"
_IN_PART = "PartiallyInvalid"
_EVERYTHING = [{"path": {"type": "PathPrefix", "value": "/"}}]
"""What the API fills in for a rule without matches."""

_PARENT_KEYS = ("group", "kind", "namespace", "name", "sectionName", "port")


class _Routes(Cluster):
    """The routes of a namespace; what is wrong with them is told as a router tells it."""

    timeout_seconds = (3.0, 10.0)
    unavailable = RouterUnavailable

    def __init__(self, place: GatewayApiPlace) -> None:
        super().__init__(place.namespace, place.context, "get and update httproutes")
        self.name = place.route
        self.where = f"httproutes {place.namespace}/{place.route}" + (f" of {place.context}" if place.context else "")

    def route(self) -> Json:
        """The route.

        Raises:
            RouterRejected: There is none.
            RouterUnavailable: It cannot be read now.
        """
        found = self.read("HTTPRoute", self.name)
        if found is None:
            hint = "look at its namespace and name, and whether the cluster has this kind"
            raise RouterRejected("there is no such route", where=self.where, hint=hint)
        return found

    def put(self, document: Json) -> Json:
        """Replace the route by a changed copy of the one that was read; returns what is there now.

        Raises:
            RouterConflict: It was written since then, even by this very put, whose answer may have been lost.
            RouterRejected: The server refuses this content.
            RouterUnavailable: It cannot be written now.
        """
        return self._ask("PUT", "HTTPRoute", self.name, query={"fieldManager": "llm-pipeline"}, body=document) or {}

    def _refuse(self, error: Any, message: str) -> NoReturn:
        if error.status == CONFLICT:
            raise RouterConflict(message, where=self.where) from error
        if error.status in _REFUSED:
            raise RouterRejected(f"the cluster refuses it: {message}", where=self.where) from error
        hint = f"this account needs: {self._needs}" if error.status in NOT_ALLOWED else ""
        message = f"the cluster does not allow it: {message}"
        raise RouterUnavailable(message, where=self.where, hint=hint) from error


class GatewayApiRouter(TrafficRouter):
    """The `TrafficRouter` port on one rule of an HTTPRoute."""

    def __init__(self, place: GatewayApiPlace) -> None:
        """Creates the client without sending a request.

        Raises:
            Unsupported: The Kubernetes client is not installed in this interpreter.
            ConfigError: There is no such context, or no kubeconfig.
        """
        self._routes = _Routes(place)
        self._where = self._routes.where
        self._place = place
        self._services: dict[SlotName, Service] = {"blue": place.backends.blue, "green": place.backends.green}

    def nearest(self, want: RouteState) -> RouteState:
        """The state without a standby: nothing fails over here."""
        return want.model_copy(update={"weights": {slot: want.weights.get(slot, 0) for slot in SLOTS}, "standby": None})

    def read(self) -> tuple[RouteState, str]:
        """The state in the object, and its revision.

        Raises:
            RouterRejected: There is no such object, or it has no such rule.
        """
        document = self._routes.route()
        return self._state(document), revision_of(document)

    def write(self, want: RouteState, expect: str | None) -> str:
        """Writes the state, but for a standby.

        A put is refused when a gateway wrote its status meanwhile, too; it is then made again from a new look.
        """
        want = self.nearest(want)
        for _ in range(_TRIES):
            document, said = self._routes.route(), None
            told = _annotations(document)
            epoch = told.get(EPOCH, "")
            if epoch.isdecimal() and int(epoch) > want.epoch:  # one that we did not write blocks no rollback
                raise Fenced(f"epoch {want.epoch} was superseded: {told.get(OWNER)} writes with {epoch}")
            revision = revision_of(document)
            with contextlib.suppress(RouterUnavailable):
                said = self._state(document)
            if said == want and self._limited(document) == document:
                return revision
            if expect is not None and expect != revision:
                raise RouterConflict(f"it is at {revision}, not at {expect}", where=self._where)
            try:
                return revision_of(self._routes.put(self._changed(document, want)))
            except RouterConflict:
                continue
        raise RouterUnavailable("it changes faster than it can be written", where=self._where)

    def converged(self, revision: str) -> bool | None:
        """Whether every gateway that the route names has accepted its generation.

        Raises:
            RouterRejected: A gateway did not accept it, left rules out, or finds a backend it cannot use: that
                backend's share of the requests would be answered with 500.
        """
        try:
            document = self._routes.route()
        except RouterUnavailable:
            return None
        if revision_of(document) != revision:
            return False
        named = {self._parent(reference) for reference in document["spec"].get("parentRefs") or ()}
        answers = [
            (parent, self._accepts(status, int(revision.partition(":")[0])))
            for status in (document.get("status") or {}).get("parents") or ()
            if (parent := self._parent(status["parentRef"])) in named  # others are left over from parents before
        ]
        heard = {parent for parent, _ in answers}
        return bool(named) and heard == named and all(accepted for _, accepted in answers)

    def usable(self, slot: SlotName) -> bool | None:
        """Whether the slot's Service has a ready endpoint; None if this account may not read that."""
        try:
            found = self._routes.list("EndpointSlice", {"kubernetes.io/service-name": self._services[slot].name})
        except (Transient, RouterRejected):
            return None
        endpoints = [endpoint for one in found for endpoint in one.get("endpoints") or ()]
        return any((endpoint.get("conditions") or {}).get("ready") is not False for endpoint in endpoints)

    def _state(self, document: Json) -> RouteState:
        backends = self._backends(document)
        shares = [int(backend.get("weight", 1)) for backend in backends]
        slots = [self._slot_of(backend) for backend in backends]
        foreign = sum(share for share, slot in zip(shares, slots, strict=True) if slot is None)
        if foreign or not sum(shares):
            what = "sends requests to a backend that is no slot" if foreign else "sends requests to no backend"
            raise RouterUnavailable(f"the rule {what}", where=self._where, hint="somebody edited it")
        mine = sum(share for share, slot in zip(shares, slots, strict=True) if slot == "green")
        green = round(mine * ALL / sum(shares))
        told = _annotations(document)
        written = {"candidate": told.get(CANDIDATE), "owner": told.get(OWNER, "nobody"), "epoch": told.get(EPOCH, "0")}
        try:
            return RouteState.model_validate({"weights": {"blue": ALL - green, "green": green}, **written})
        except ValidationError as error:
            problem = f"its annotations were not written by this package: {error}"
            raise RouterUnavailable(problem, where=self._where) from error

    def _changed(self, document: Json, want: RouteState) -> Json:
        """The document with our weights; whatever else it holds is kept, and every other backend gets nothing."""
        changed = self._limited(document)
        backends = self._backends(changed)
        open_slots = dict(want.weights)
        for backend in backends:
            slot = self._slot_of(backend)
            backend["weight"] = open_slots.pop(slot, 0) if slot else 0
        for slot, weight in open_slots.items():
            service = self._services[slot]
            backends.append(
                {"group": "", "kind": "Service", "name": service.name, "port": service.port, "weight": weight}
            )
        told = changed["metadata"].setdefault("annotations", {})
        told |= {OWNER: want.owner, EPOCH: str(want.epoch), WRITTEN: str(time.time_ns())}
        told.pop(CANDIDATE, None)
        if want.candidate:
            told[CANDIDATE] = want.candidate
        return changed

    def _limited(self, document: Json) -> Json:
        """A copy whose rule has users' paths, where it had none of its own."""
        limited = copy.deepcopy(document)
        rule = self._rule(limited)
        if (rule.get("matches") or _EVERYTHING) == _EVERYTHING:
            rule["matches"] = [{"path": {"type": "Exact", "value": path}} for path in users_paths.OPENAI_PATHS]
        return limited

    def _rule(self, document: Json) -> Json:
        rules: list[Json] = document["spec"].get("rules") or []
        if len(rules) <= self._place.rule:
            raise RouterRejected(f"the route has no rule {self._place.rule}", where=self._where)
        return rules[self._place.rule]

    def _backends(self, document: Json) -> list[Json]:
        backends: list[Json] = self._rule(document).setdefault("backendRefs", [])
        return backends

    def _slot_of(self, backend: Json) -> SlotName | None:
        if backend.get("group") or backend.get("kind", "Service") != "Service":
            return None
        if backend.get("namespace", self._routes.namespace) != self._routes.namespace:
            return None
        for slot, service in self._services.items():
            if (backend["name"], backend.get("port")) == (service.name, service.port):
                return slot
        return None

    def _parent(self, reference: Json) -> tuple[Any, ...]:
        """What names a gateway, or one of its listeners; the API fills in defaults."""
        defaults = {"group": _GROUP, "kind": "Gateway", "namespace": self._routes.namespace}
        return tuple({**defaults, **reference}.get(key) for key in _PARENT_KEYS)

    def _accepts(self, parent: Json, generation: int) -> bool:
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


def revision_of(document: Json) -> str:
    """The generation, which changes with every change of the specification by any hand, and our last write."""
    return f"{document['metadata'].get('generation', 0)}:{_annotations(document).get(WRITTEN, '')}"


def _annotations(document: Json) -> dict[str, str]:
    return document["metadata"].get("annotations") or {}
