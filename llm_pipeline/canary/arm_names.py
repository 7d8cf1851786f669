"""What clusters, routes and statistics are called."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from llm_pipeline.canary.router import RouteState, SlotName, other_slot

ROUTES = "main"
STAT_PREFIX = "ingress"
FAILOVER_SUFFIX = "_failover"
BACKED_SUFFIX = "_backed"
GUARDED_SUFFIX = "_guarded"

Protocol = Literal["http", "grpc", "openai"]


def cluster_name(slot: SlotName, protocol: Protocol) -> str:
    """The plain cluster of a slot."""
    return slot if protocol == "http" else f"{slot}_{protocol}"


def arm_name(slot: SlotName, protocol: Protocol, state: RouteState) -> str:
    """The cluster that a slot's route points to: on trial, or with a standby, its failures go to another."""
    name = cluster_name(slot, protocol)
    if slot == state.candidate:
        return name + FAILOVER_SUFFIX
    backed = state.candidate is not None or state.standby == other_slot(slot)
    return name + BACKED_SUFFIX if backed else name


def plain_name(arm: str) -> str:
    """The plain cluster of the slot whose arm this is: the inverse of `arm_name`."""
    return arm.removesuffix(FAILOVER_SUFFIX).removesuffix(BACKED_SUFFIX)


def candidate_of(arms: Iterable[str]) -> str | None:
    """The slot on trial, by its arm."""
    return next((plain_name(arm) for arm in arms if arm.endswith(FAILOVER_SUFFIX)), None)


def standby_of(arms: Iterable[str]) -> str | None:
    """The slot that stands by: the one whose own arm is plain where the other's is backed."""
    names = list(arms)
    if candidate_of(names) is not None or not any(arm.endswith(BACKED_SUFFIX) for arm in names):
        return None
    return next((arm for arm in names if arm == plain_name(arm)), None)
