"""The port to the router that splits live traffic: read its state, write it conditionally, see that it took effect."""

from __future__ import annotations

from typing import Annotated, Literal, Protocol, runtime_checkable

from pydantic import Field, model_validator

from llm_pipeline.base.errors import Terminal, Transient, Unsupported
from llm_pipeline.base.records import Frozen

SlotName = Literal["blue", "green"]
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
        sticky_header: Requests with the same value of this header stay in one arm; None splits request by request.
        owner: Who wrote it, for people.
        epoch: Fencing number: a write with a lower one is refused.
    """

    weights: dict[SlotName, Annotated[int, Field(ge=0, le=ALL)]]
    candidate: SlotName | None = None
    standby: SlotName | None = None
    sticky_header: str | None = None
    owner: str
    epoch: Annotated[int, Field(ge=0)]

    @model_validator(mode="after")
    def _sums_to_all(self) -> RouteState:
        if sum(self.weights.values()) != ALL:
            raise ValueError(f"weights sum to {sum(self.weights.values())} basis points, not {ALL}")
        return self

    @model_validator(mode="after")
    def _stands_by_idle(self) -> RouteState:
        if self.standby is not None and (self.candidate is not None or self.weights.get(self.standby, 0)):
            raise ValueError(f"slot {self.standby} cannot stand by: it has traffic, or a release is on trial")
        return self

    def same_traffic(self, other: RouteState) -> bool:
        """Whether both split traffic the same way, whoever wrote them, and whatever the standby."""
        return self._traffic() == other._traffic()

    def _traffic(self) -> tuple[object, ...]:
        weights = {slot: weight for slot, weight in self.weights.items() if weight}
        return weights, self.candidate, self.sticky_header


def other_slot(slot: SlotName) -> SlotName:
    """The other one of the two."""
    return "green" if slot == "blue" else "blue"


def all_to(slot: SlotName, *, owner: str, epoch: int, standby: SlotName | None = None) -> RouteState:
    """The whole traffic to one slot, nothing on trial."""
    return RouteState(weights={slot: ALL}, standby=standby, owner=owner, epoch=epoch)


def rounded(want: RouteState, unit: int, *, where: str) -> RouteState:
    """The state for a router with weights in steps of `unit` basis points and no sessions or retries.

    Raises:
        Unsupported: A share would become nothing, or sessions are to be kept.
    """
    if want.sticky_header is not None:
        raise Unsupported("this router cannot keep sessions by a header", where=where)
    share = want.weights.get("green", 0)
    nearest = round(share / unit) * unit
    if nearest in (0, ALL) and nearest != share:
        raise Unsupported(f"this router splits by at least {unit / 100:g} %", where=where)
    weights = {"blue": ALL - nearest, "green": nearest}
    return want.model_copy(update={"weights": weights, "standby": None})


class TrafficRouter(Protocol):
    """The interface of every router adapter."""

    def nearest(self, want: RouteState) -> RouteState:
        """The nearest state that the router supports: its weights may be coarser, without a standby.

        Call this before a state is recorded as intended: the split is tested against the weights that are really set.

        Raises:
            Unsupported: It cannot split like that, or not at all by that header.
        """

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

    def usable(self, slot: SlotName) -> bool | None:
        """Whether the router would send requests to the slot now; None when that cannot be known."""

    def active_requests(self, slot: SlotName) -> int | None:
        """Requests in flight at the slot; None when that cannot be known."""

    def revive(self) -> str | None:
        """Start the router if it has ended and is ours to start; None if nothing had to be done.

        Returns:
            What was done, in one sentence.

        Raises:
            PipelineError: It does not start.
        """


@runtime_checkable
class NamesReleases(Protocol):
    """A router whose answers say which release gave them."""

    def name_release(self, slot: SlotName, release_id: str) -> None:
        """Name the release in the headers of a slot's answers; traffic and revision do not change.

        Raises:
            RouterUnavailable: It cannot be written.
        """


@runtime_checkable
class CountsAttempts(Protocol):
    """A router that counts what it sends to the servers."""

    def attempts(self) -> int | None:
        """Requests that were sent to the servers so far, hidden retries included; None when that cannot be known."""


@runtime_checkable
class TellsCondition(Protocol):
    """A router that knows its own condition."""

    def condition(self) -> RouterCondition:
        """Whether it runs and answers."""


@runtime_checkable
class StartedRouter(Protocol):
    """A router whose process is ours to stop."""

    @property
    def runs(self) -> bool:
        """Whether its process is there."""

    def close(self) -> None:
        """Accept no more connections; requests on open ones continue.

        Raises:
            RouterUnavailable: It does not answer.
        """

    def in_flight(self) -> int:
        """Requests in flight at all slots, as far as that is known."""

    def stop(self) -> None:
        """End its process; its weights stay."""
