"""An HTTPRoute of the Gateway API as a traffic router: weighted backends in one of its rules.

Annotations of the route say who moves traffic with which epoch. The route is read, changed and put back at the version
that was read (lists in routes are atomic, so a patch would not be safer), so nobody can come between the look at the
epoch and the write: an old owner is fenced for certain. The revision is the route's generation and a stamp of our own
write; the API's own `resourceVersion` would change with every status that a gateway writes.

Weights are written in basis points: the API takes any proportion, and a gateway may round it on its own, which only the
measured split shows. Its controller acknowledges a generation in the route's status, which says that it has accepted
the route; the API has no field for when its proxies act on it.
Persistent sessions are not in the standard channel and lead to one server, not to one arm: a header cannot be used.
Nothing fails over: a candidate's failures are the users'. Whatever applies manifests to the cluster (Argo CD, Flux)
has to leave these weights and annotations alone, or each of its rounds is a change by another hand.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from llm_pipeline.adapters.gateway_api.adapter import GatewayApiPlace, Service
from llm_pipeline.adapters.kubernetes.api import open_client, status_message
from llm_pipeline.base.errors import Fenced, Unsupported
from llm_pipeline.canary import users_paths
from llm_pipeline.canary.router import (
    ALL,
    RouterConflict,
    RouterRejected,
    RouterUnavailable,
    RouteState,
    SlotName,
    rounded,
)

Document = dict[str, Any]

OWNER = "llm-pipeline/owner"
EPOCH = "llm-pipeline/epoch"
CANDIDATE = "llm-pipeline/candidate"
WRITTEN = "llm-pipeline/written"

_SLOTS: tuple[SlotName, SlotName] = ("blue", "green")
_TRIES = 5
_TIMEOUT_SECONDS = (3.0, 10.0)  # to connect, to wait for an answer
_WAITS_SECONDS = (0.2, 0.5)
_CONFLICT, _NOT_FOUND = 409, 404
_REFUSED = (400, _NOT_FOUND, 405, 413, 415, 422)
_NOT_ALLOWED = (401, 403)
_BUSY = (429, 500, 502, 503, 504)
_ACCEPTED, _RESOLVED = "Accepted", "ResolvedRefs"
_IN_PART = "PartiallyInvalid"
_EVERYTHING = [{"path": {"type": "PathPrefix", "value": "/"}}]
"""What the API fills in for a rule without matches."""

_PARENT_KEYS = ("group", "kind", "namespace", "name", "sectionName", "port")


@dataclass(frozen=True)
class Resource:
    """A kind of objects as the API's paths have it, e.g. `gateway.networking.k8s.io`, `v1`, `httproutes`."""

    group: str
    version: str
    plural: str


HTTP_ROUTE = Resource("gateway.networking.k8s.io", "v1", "httproutes")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices")


class KubernetesObject:
    """An object of any kind, custom ones included.

    Args:
        resource: Its kind.
        namespace: Its namespace.
        name: Its name.
        context: Context of the kubeconfig; None for the pod's own service account, or the current context.

    Raises:
        Unsupported: The Kubernetes client is not installed in this interpreter.
        ConfigError: There is no such context, or no kubeconfig.
    """

    def __init__(self, resource: Resource, namespace: str, name: str, context: str | None) -> None:
        self.where = f"{resource.plural} {namespace}/{name}" + (f" of {context}" if context else "")
        self.namespace = namespace
        self._resource = resource
        self._name = name
        opened = open_client(context)
        from kubernetes import client

        self._objects = client.CustomObjectsApi(opened)

    def get(self) -> Document:
        """The object.

        Raises:
            RouterRejected: There is none.
            RouterUnavailable: It cannot be read now.
        """
        kind = self._resource
        return self._ask(
            self._objects.get_namespaced_custom_object,
            kind.group, kind.version, self.namespace, kind.plural, self._name,
        )  # fmt: skip

    def put(self, document: Document) -> Document:
        """Replace the object by a changed copy of the one that was read; returns what is there now.

        Raises:
            RouterConflict: It was written since then, even by this very put, whose answer may have been lost.
            RouterRejected: The server refuses this content.
            RouterUnavailable: It cannot be written now.
        """
        kind = self._resource
        return self._ask(
            self._objects.replace_namespaced_custom_object,
            kind.group, kind.version, self.namespace, kind.plural, self._name, document,
            field_manager="llm-pipeline",
        )  # fmt: skip

    def neighbours(self, resource: Resource, selector: str) -> list[Document]:
        """Objects of another kind with these labels, in the same namespace.

        Raises:
            RouterRejected: The server has no such kind.
            RouterUnavailable: They cannot be read now.
        """
        found = self._ask(
            self._objects.list_namespaced_custom_object,
            resource.group, resource.version, self.namespace, resource.plural,
            label_selector=selector,
        )  # fmt: skip
        return list(found.get("items") or ())

    def _ask(self, function: Callable[..., Any], *args: Any, **options: Any) -> Document:
        """Call the API, and try again while it is busy. A put whose answer was lost is then a conflict."""
        import urllib3
        from kubernetes.client import ApiException

        for wait in (*_WAITS_SECONDS, None):
            try:
                answer = function(*args, _request_timeout=_TIMEOUT_SECONDS, **options)
            except ApiException as error:
                if error.status not in _BUSY:
                    raise self._error(error) from error
                problem = f"{error.status} {error.reason}"
            except urllib3.exceptions.HTTPError as error:
                problem = str(error)
            else:
                if isinstance(answer, dict):
                    return answer
                problem = "an answer that is not an object"
            if wait is not None:
                time.sleep(wait)
        raise RouterUnavailable(f"the cluster does not answer: {problem}", where=self.where)

    def _error(self, error: Any) -> Exception:
        message = status_message(error)
        if error.status == _CONFLICT:
            return RouterConflict(message, where=self.where)
        if error.status == _NOT_FOUND:
            hint = "look at its namespace and name, and whether the cluster has this kind"
            return RouterRejected(message, where=self.where, hint=hint)
        if error.status in _REFUSED:
            return RouterRejected(f"the cluster refuses it: {message}", where=self.where)
        hint = f"this account needs: get and update {self._resource.plural}" if error.status in _NOT_ALLOWED else ""
        return RouterUnavailable(f"the cluster does not allow it: {message}", where=self.where, hint=hint)


class GatewayApiRouter:
    """The `TrafficRouter` port on one rule of an HTTPRoute."""

    def __init__(self, place: GatewayApiPlace) -> None:
        """Creates the client without sending a request.

        Raises:
            Unsupported: The Kubernetes client is not installed in this interpreter.
            ConfigError: There is no such context, or no kubeconfig.
        """
        self._object = KubernetesObject(HTTP_ROUTE, place.namespace, place.route, place.context)
        self._place = place
        self._services: dict[SlotName, Service] = {"blue": place.backends.blue, "green": place.backends.green}

    def nearest(self, want: RouteState) -> RouteState:
        """The state, if it has no sessions: no header can keep them here."""
        return rounded(want, 1, where=self._where)

    def read(self) -> tuple[RouteState, str]:
        """The state in the object, and its revision.

        Raises:
            RouterRejected: There is no such object, or it has no such rule.
        """
        document = self._object.get()
        return self._state(document), revision_of(document)

    def write(self, want: RouteState, expect: str | None) -> str:
        """Writes the state, with the weights of `nearest`.

        A put is refused when a gateway wrote its status meanwhile, too; it is then made again from a new look.
        """
        want = self._possible(want)
        for _ in range(_TRIES):
            document = self._object.get()
            if (epoch := _epoch_of(document)) > want.epoch:
                owner = _annotations(document).get(OWNER)
                raise Fenced(f"epoch {want.epoch} was superseded: {owner} writes with {epoch}")
            revision = revision_of(document)
            if self._says(document, want) and self._limited(document) == document:
                return revision
            if expect is not None and expect != revision:
                raise RouterConflict(f"it is at {revision}, not at {expect}", where=self._where)
            try:
                return revision_of(self._object.put(self._changed(document, want)))
            except RouterConflict:
                continue
        raise RouterUnavailable("it changes faster than it can be written", where=self._where)

    def active_requests(self, slot: SlotName) -> int | None:  # noqa: ARG002 - the port's
        """None: it cannot be known."""
        return None

    def revive(self) -> str | None:
        """Nothing to do: the gateway is the cluster's."""
        return None

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

    @property
    def _where(self) -> str:
        return self._object.where

    def _possible(self, want: RouteState) -> RouteState:
        try:
            return self.nearest(want)
        except Unsupported as error:
            raise RouterRejected(error.message, where=error.where) from error

    def _state(self, document: Document) -> RouteState:
        backends = self._backends(document)
        shares = self._shares(backends)
        slots = [self._slot_of(backend) for backend in backends]
        foreign = sum(share for share, slot in zip(shares, slots, strict=True) if slot is None)
        if foreign or not sum(shares):
            what = "sends requests to a backend that is no slot" if foreign else "sends requests to no backend"
            raise RouterUnavailable(f"the rule {what}", where=self._where, hint="somebody edited it")
        mine = sum(share for share, slot in zip(shares, slots, strict=True) if slot == "green")
        green = round(mine * ALL / sum(shares))
        told = _annotations(document)
        values = {"weights": {"blue": ALL - green, "green": green}, "candidate": told.get(CANDIDATE)}
        try:
            return RouteState.model_validate(
                {**values, "owner": told.get(OWNER, "nobody"), "epoch": int(told.get(EPOCH, "0"))}
            )
        except (ValidationError, ValueError) as error:
            raise RouterUnavailable(
                f"its annotations were not written by this package: {error}", where=self._where
            ) from error

    def _says(self, document: Document, want: RouteState) -> bool:
        try:
            return self._state(document) == want
        except RouterUnavailable:
            return False

    def _changed(self, document: Document, want: RouteState) -> Document:
        """The document with our weights; whatever else it holds is kept, and every other backend gets nothing."""
        changed = self._limited(document)
        backends = self._backends(changed)
        open_slots = dict(want.weights)
        for backend in backends:
            slot = self._slot_of(backend)
            backend["weight"] = open_slots.pop(slot, 0) if slot else 0
        backends += [{**self._new_backend(slot), "weight": open_slots[slot]} for slot in _SLOTS if slot in open_slots]
        told = changed["metadata"].setdefault("annotations", {})
        told |= {OWNER: want.owner, EPOCH: str(want.epoch), WRITTEN: str(time.time_ns())}
        told.pop(CANDIDATE, None)
        told |= {CANDIDATE: want.candidate} if want.candidate else {}
        return changed

    def _limited(self, document: Document) -> Document:
        limited = copy.deepcopy(document)
        self._limit(limited)
        return limited

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
            rule["matches"] = [{"path": {"type": "Exact", "value": path}} for path in users_paths.OPENAI_PATHS]

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


def revision_of(document: Document) -> str:
    """The generation, which changes with every change of the specification by any hand, and our last write."""
    return f"{document['metadata'].get('generation', 0)}:{_annotations(document).get(WRITTEN, '')}"


def generation_of(revision: str) -> int:
    """The generation in a revision."""
    return int(revision.partition(":")[0])


def _annotations(document: Document) -> dict[str, str]:
    return document["metadata"].get("annotations") or {}


def _epoch_of(document: Document) -> int:
    """The epoch that fences older writers; 0 for an annotation we did not write, which would block every rollback."""
    epoch = _annotations(document).get(EPOCH, "")
    return int(epoch) if epoch.isdecimal() else 0
