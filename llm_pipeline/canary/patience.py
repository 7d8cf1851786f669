"""How long each part of a move of traffic is tried."""

from __future__ import annotations

from dataclasses import dataclass

from llm_pipeline.config.router_place import RouterPlace


@dataclass(frozen=True)
class Patience:
    """How long each part of a rollback is tried, in seconds.

    Attributes:
        write: For writing the routes; after that the rollback fails, and its caller tries again.
        confirm: For the router's confirmation; after that it continues unconfirmed.
        prove: For an answer of the server that gets the traffic back.
        drain: For requests in flight at a server that is to be stopped; after that they are cut. None for the time in
            the canary's policy.
        usable: For the router's health checks to accept a new candidate; after that it gets no traffic.
        blind_drain: Instead of `drain` where requests in flight cannot be counted; None for the same time.
    """

    write: float = 60.0
    confirm: float = 5.0
    prove: float = 60.0
    drain: float | None = None
    usable: float = 15.0
    blind_drain: float | None = 2.0

    @classmethod
    def with_router(cls, place: RouterPlace) -> Patience:
        """The times that suit a kind of router; one that never counts requests in flight drains for the full time."""
        blind = cls.blind_drain if place.logs_requests else None
        return cls(confirm=place.acts_within_seconds, blind_drain=blind)
