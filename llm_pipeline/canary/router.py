"""The port to the router that splits live traffic: its state, its interface, its adapters, and the names of its arms.

Light to import, as every reader of a deployment does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import Field, model_validator

from llm_pipeline.base.adapters import Adapter, adapter
from llm_pipeline.base.errors import Terminal, Transient, Unsupported
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.access_log import BACKED_SUFFIX, FAILOVER_SUFFIX, AccessLog, plain_name

if TYPE_CHECKING:
    from llm_pipeline.config.router_place import RouterModel, RouterPlace
    from llm_pipeline.config.server_place import SlotServer

log = get_logger(__name__)

SlotName = Literal["blue", "green"]
SLOTS: tuple[SlotName, ...] = ("blue", "green")
RouterCondition = Literal["runs", "answers nothing", "has ended", "stopped", "never started", "cannot be read"]
ALL = 10_000
"""Basis points of the whole traffic."""


class RouterConflict(Transient):
    """The router is not in the state that the write expected."""


class RouterRejected(Terminal):
    """The router refused the new state and kept its old one."""


class RouterUnavailable(Transient):
    """The router cannot be read or written now."""


class RouteState(Frozen):
    """The state that a router is to have.

    Attributes:
        weights: Basis points by slot; they sum to 10 000.
        candidate: The slot on trial: each arm fails over to the other slot, so that neither's failures lose a request.
            None when no release is on trial.
        standby: The slot that gets requests only when the one with all traffic fails: the previous version, or a
            candidate before its first step (see `moving`). None for no standby; arms on trial back each other.
        owner: Who wrote it, for people.
        epoch: Fencing number: a write with a lower one is refused.
    """

    weights: dict[SlotName, Annotated[int, Field(ge=0, le=ALL)]]
    candidate: SlotName | None = None
    standby: SlotName | None = None
    owner: str
    epoch: Annotated[int, Field(ge=0)]

    @model_validator(mode="after")
    def _is_possible(self) -> RouteState:
        if sum(self.weights.values()) != ALL:
            raise ValueError(f"weights sum to {sum(self.weights.values())} basis points, not {ALL}")
        if self.standby is not None and (self.candidate is not None or self.weights.get(self.standby, 0)):
            raise ValueError(f"slot {self.standby} cannot stand by: it has traffic, or a release is on trial")
        return self

    def same_traffic(self, other: RouteState) -> bool:
        """Whether both split traffic the same way, whoever wrote them, and whatever the standby."""
        mine, theirs = ({slot: weight for slot, weight in one.weights.items() if weight} for one in (self, other))
        return mine == theirs and self.candidate == other.candidate

    @property
    def shares(self) -> str:
        """For people, e.g. `blue 75 %, green 25 %`."""
        return ", ".join(f"{slot} {weight / 100:g} %" for slot, weight in sorted(self.weights.items()))


def other_slot(slot: SlotName) -> SlotName:
    """The other one of the two."""
    return "green" if slot == "blue" else "blue"


def all_to(slot: SlotName, *, owner: str, epoch: int, standby: SlotName | None = None) -> RouteState:
    """The whole traffic to one slot, nothing on trial."""
    return RouteState(weights={slot: ALL}, standby=standby, owner=owner, epoch=epoch)


class TrafficRouter(Protocol):
    """The interface of every router adapter; one that derives from it says only what it can tell and do."""

    def nearest(self, want: RouteState) -> RouteState:
        """The nearest state that the router supports: its weights may be coarser, without a standby.

        Call this before a state is recorded as intended: the split is tested against the weights that are really set.

        Raises:
            Unsupported: It cannot split like that.
        """
        return want

    def read(self) -> tuple[RouteState, str]:
        """The state that was last written to the router, and its revision.

        Raises:
            RouterUnavailable: It cannot be read.
        """

    def write(self, want: RouteState, expect: str | None) -> str:
        """Replace the state, atomically and idempotently; returns the new revision.

        Args:
            want: The new state.
            expect: The revision it must still be at; None writes whatever is there (the rollback path).

        Raises:
            Fenced: The router has seen a higher epoch.
            RouterConflict: The revision is another one.
            RouterUnavailable: It cannot be written now.
            RouterRejected: It refuses this state.
        """

    def converged(self, revision: str) -> bool | None:
        """Whether the data plane acts on that revision; None when that cannot be known now.

        Raises:
            RouterRejected: The data plane refused it and kept its old state.
        """

    def usable(self, slot: SlotName) -> bool | None:  # noqa: ARG002
        """Whether the router would send requests to the slot now; None when that cannot be known."""
        return None

    def active_requests(self, slot: SlotName) -> int | None:  # noqa: ARG002
        """Requests in flight at the slot; None when that cannot be known."""
        return None

    def revive(self) -> str | None:
        """Start the router if it has ended and is ours to start; None if nothing had to be done.

        Returns:
            What was done, in one sentence.

        Raises:
            PipelineError: It does not start.
        """
        return None

    def name_release(self, slot: SlotName, release_id: str) -> None:
        """Name the release in the headers of a slot's answers, if it can; traffic and revision do not change."""

    def access_log(self) -> AccessLog:
        """Its record of requests, one by one.

        Raises:
            Unsupported: It keeps none.
        """
        hint = "name a metric source for its analysis"
        raise Unsupported("this router keeps no record of single requests", hint=hint)


@runtime_checkable
class StartedRouter(TrafficRouter, Protocol):
    """A router whose process is ours: started and stopped here."""

    @property
    def runs(self) -> bool:
        """Whether its process is there."""

    def condition(self) -> RouterCondition:
        """Whether it runs and answers."""

    def close(self) -> None:
        """Accept no more connections; requests on open ones continue.

        Raises:
            RouterUnavailable: It does not answer.
        """

    def in_flight(self) -> int:
        """Requests in flight at all slots, as far as that is known."""

    def stop(self) -> None:
        """End its process; its weights stay."""


ROUTES = "main"
STAT_PREFIX = "ingress"
GUARDED_SUFFIX = "_guarded"

ArmProtocol = Literal["http", "grpc", "openai"]


def cluster_name(slot: SlotName, protocol: ArmProtocol) -> str:
    """The plain cluster of a slot."""
    return slot if protocol == "http" else f"{slot}_{protocol}"


def arm_name(slot: SlotName, protocol: ArmProtocol, state: RouteState) -> str:
    """The cluster that a slot's route points to: on trial, or with a standby, its failures go to another."""
    name = cluster_name(slot, protocol)
    if slot == state.candidate:
        return name + FAILOVER_SUFFIX
    backed = state.candidate is not None or state.standby == other_slot(slot)
    return name + BACKED_SUFFIX if backed else name


def candidate_of(arms: Iterable[str]) -> str | None:
    """The slot on trial, by its arm."""
    return next((plain_name(arm) for arm in arms if arm.endswith(FAILOVER_SUFFIX)), None)


def standby_of(arms: Iterable[str]) -> str | None:
    """The slot that stands by: the one whose own arm is plain where the other's is backed."""
    names = list(arms)
    if candidate_of(names) is not None or not any(arm.endswith(BACKED_SUFFIX) for arm in names):
        return None
    return next((arm for arm in names if arm == plain_name(arm)), None)


@dataclass(frozen=True)
class Patience:
    """How long each part of a rollback is tried, in seconds.

    Attributes:
        write: For writing the routes; after that the rollback fails, and its caller tries again.
        confirm: For the router's confirmation; after that it continues unconfirmed.
        prove: For an answer of the server that gets the traffic back.
        usable: For the router's health checks to accept a new candidate; after that it gets no traffic.
        blind_drain: For requests in flight, instead of the policy's time, where they cannot be counted; None for that.
    """

    write: float = 60.0
    confirm: float = 5.0
    prove: float = 60.0
    usable: float = 15.0
    blind_drain: float | None = 2.0

    @classmethod
    def with_router(cls, place: RouterPlace) -> Patience:
        """The times that suit a kind of router; one that never counts requests in flight drains for the full time."""
        blind = cls.blind_drain if place.logs_requests else None
        return cls(confirm=place.acts_within_seconds, blind_drain=blind)


@dataclass(frozen=True)
class RouterAdapter(Adapter):
    """The adapter of a router; see `Adapter`.

    Attributes:
        config: The model of its settings; its class variables say what it can do.
        open: Opens the router, from `(place, slots, state, initial=...)`; starts it, or writes its first routes, where
            that is ours to do: see `open_router`.
        as_it_is: The router, from `(place, slots, state)`, without starting or asking anything; None if none ever ran.
    """

    config: type[RouterModel]
    open: Callable[..., TrafficRouter]
    as_it_is: Callable[[Any, Any, Any], TrafficRouter | None]


def remote(config: type[RouterModel], router: Callable[[Any], TrafficRouter]) -> RouterAdapter:
    """The adapter of a router that runs elsewhere: it has nothing to start, and all it needs is its place."""

    def probe(place: Any) -> str:
        state, _ = router(place).read()
        return f"{place.kind} answers: {state.shares}"

    return RouterAdapter(config, lambda place, *_, **__: router(place), lambda place, *_: router(place), probe=probe)


def open_router(
    place: RouterPlace, slots: Mapping[SlotName, SlotServer], state: Path, *, initial: RouteState
) -> TrafficRouter:
    """Open the router; one of this package is started, or given its first routes.

    Args:
        place: What the router is, and where.
        slots: The servers behind it.
        state: Directory of what it keeps on this host: configuration, process record, logs, lock.
        initial: Routes of a router that never had any; others keep theirs.

    Raises:
        ConfigError: It cannot be started or used as its place says.
        RouterUnavailable: It does not answer.
    """
    return _adapter(place).open(place, slots, state, initial=initial)


def router_as_it_is(place: RouterPlace, slots: Mapping[SlotName, SlotServer], state: Path) -> TrafficRouter | None:
    """The router for a rollback, without starting or asking anything; None if none ever ran.

    Routes can be written even while an Envoy is down: it reads them from disk when it starts.
    """
    return _adapter(place).as_it_is(place, slots, state)


def _adapter(place: RouterPlace) -> RouterAdapter:
    found: RouterAdapter = adapter("routers", place.kind)
    return found
