"""A traffic router that is one object of a Kubernetes API, whose backends have weights.

Annotations of the object say who moves traffic with which epoch. The object is read, changed and put back at the
version that was read, so nobody can come between the look at the epoch and the write: an old owner is fenced for
certain. The revision is the object's generation and a stamp of our own write; the API's own `resourceVersion` would
change with every status that a gateway writes.

Nothing fails over: a candidate's failures are the users'. Whatever applies manifests to the cluster (Argo CD, Flux)
has to leave these weights and annotations alone, or each of its rounds is a change by another hand.
"""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod

from pydantic import ValidationError

from llm_pipeline.adapters.kubernetes.custom_object import Document, KubernetesObject
from llm_pipeline.base.errors import Fenced, Unsupported
from llm_pipeline.canary.router import (
    ALL,
    RouterConflict,
    RouterRejected,
    RouterUnavailable,
    RouteState,
    SlotName,
    rounded,
)
from llm_pipeline.config.router_place import RouterModel

OWNER = "llm-pipeline/owner"
EPOCH = "llm-pipeline/epoch"
CANDIDATE = "llm-pipeline/candidate"
WRITTEN = "llm-pipeline/written"

_SLOTS: tuple[SlotName, SlotName] = ("blue", "green")
_TRIES = 5


class KubernetesRouter(ABC):
    """The `TrafficRouter` port on one object; a subclass knows where its kind has the backends."""

    def __init__(self, target: KubernetesObject, place: RouterModel) -> None:
        self._object = target
        self._unit = place.share_unit

    @abstractmethod
    def _backends(self, document: Document) -> list[Document]:
        """The backends of the rule whose traffic is split, as they are in the document.

        Raises:
            RouterRejected: There is no such rule.
        """

    @abstractmethod
    def _slot_of(self, backend: Document) -> SlotName | None:
        """The slot that a backend leads to."""

    @abstractmethod
    def _new_backend(self, slot: SlotName) -> Document:
        """A backend that leads to the slot, without a weight."""

    @abstractmethod
    def _limit(self, document: Document) -> None:
        """Have the rule match users' paths only (`users_paths`), unless its operator says which it matches."""

    def _limited(self, document: Document) -> Document:
        limited = copy.deepcopy(document)
        self._limit(limited)
        return limited

    @abstractmethod
    def _shares(self, backends: list[Document]) -> list[int]:
        """The weights in force, with the defaults of the kind."""

    def nearest(self, want: RouteState) -> RouteState:
        """Rounds weights to the nearest unit, and leaves out mirrored requests, which this router cannot send."""
        return rounded(want, self._unit, where=self._where)

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

    @abstractmethod
    def converged(self, revision: str) -> bool | None:
        """Whether the data plane acts on the revision; None if that cannot be known now."""

    def usable(self, slot: SlotName) -> bool | None:  # noqa: ARG002 - the port's
        """None: it cannot be known from the object."""
        return None

    def active_requests(self, slot: SlotName) -> int | None:  # noqa: ARG002 - the port's
        """None: it cannot be known."""
        return None

    def revive(self) -> str | None:
        """Nothing to do: the gateway is the cluster's."""
        return None

    @property
    def _where(self) -> str:
        return self._object.where

    def _possible(self, want: RouteState) -> RouteState:
        if want.mirror is not None:
            raise RouterRejected("this router cannot mirror requests", where=self._where)
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
            backend["weight"] = open_slots.pop(slot, 0) // self._unit if slot else 0
        backends += [
            {**self._new_backend(slot), "weight": open_slots[slot] // self._unit}
            for slot in _SLOTS
            if slot in open_slots
        ]
        told = changed["metadata"].setdefault("annotations", {})
        told |= {OWNER: want.owner, EPOCH: str(want.epoch), WRITTEN: str(time.time_ns())}
        told.pop(CANDIDATE, None)
        told |= {CANDIDATE: want.candidate} if want.candidate else {}
        return changed


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
