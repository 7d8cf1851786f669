"""What an entry point in `llm_pipeline.routers` names. Light to import, as every reader of a deployment does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llm_pipeline.base.adapters import Adapter

if TYPE_CHECKING:
    from llm_pipeline.canary.router import TrafficRouter
    from llm_pipeline.config.router_place import RouterModel


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
        shares = ", ".join(f"{slot} {weight / 100:g} %" for slot, weight in sorted(state.weights.items()))
        return f"{place.kind} answers: {shares}"

    return RouterAdapter(config, lambda place, *_, **__: router(place), lambda place, *_: router(place), probe=probe)
