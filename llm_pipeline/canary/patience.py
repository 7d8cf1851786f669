"""How long each part of a move of traffic is tried."""

from __future__ import annotations

from dataclasses import dataclass

from llm_pipeline.config.router_place import RouterPlace


@dataclass(frozen=True)
class DrainLimit:
    """How long requests in flight are waited for, in seconds.

    Attributes:
        seconds: While they are counted.
        blind_seconds: Where nobody counts them.
    """

    seconds: float
    blind_seconds: float


@dataclass(frozen=True)
class Patience:
    """How long each part of a rollback is tried, in seconds.

    Attributes:
        write: For writing the routes; then the rollback fails and is retried by its caller.
        confirm: For the router's acknowledgement; then it goes on unconfirmed.
        prove: For an answer of the server that traffic goes back to.
        drain: For requests in flight at a server that is to be stopped; then they are cut. None for as long as the
            canary's policy says.
        usable: For the router's health checks to accept a fresh candidate; then it is not tried.
        blind_drain: Waited instead when nobody tells what is in flight; None for as long as `drain`.
    """

    write: float = 60.0
    confirm: float = 5.0
    prove: float = 60.0
    drain: float | None = None
    usable: float = 15.0
    blind_drain: float | None = 2.0

    @classmethod
    def with_router(cls, place: RouterPlace) -> Patience:
        """As much as its kind takes; one that never tells what is in flight is given the whole time to drain."""
        blind = cls.blind_drain if place.logs_requests else None
        return cls(confirm=place.acts_within_seconds, blind_drain=blind)

    def draining(self, policy_seconds: float) -> DrainLimit:
        """How long requests in flight are waited for, where the policy says so many seconds."""
        seconds = policy_seconds if self.drain is None else self.drain
        return DrainLimit(seconds, seconds if self.blind_drain is None else self.blind_drain)
