"""What clusters, routes and statistics are called."""

from __future__ import annotations

from typing import Literal

from llm_pipeline.canary.router import SlotName

ROUTES = "main"
STAT_PREFIX = "ingress"
FAILOVER_SUFFIX = "_failover"
BACKED_SUFFIX = "_backed"
GUARDED_SUFFIX = "_guarded"
MIRROR_SUFFIX = "_mirror"

Protocol = Literal["http", "grpc"]


def cluster_name(slot: SlotName, protocol: Protocol) -> str:
    """The plain cluster of a slot."""
    return slot if protocol == "http" else f"{slot}_grpc"


def arm_name(slot: SlotName, protocol: Protocol, candidate: SlotName | None) -> str:
    """The cluster that a slot's route points to; with a candidate on trial, each slot's failures go to the other."""
    name = cluster_name(slot, protocol)
    if candidate is None:
        return name
    return name + (FAILOVER_SUFFIX if slot == candidate else BACKED_SUFFIX)


def plain_name(arm: str) -> str:
    """The plain cluster of the slot whose arm this is: the inverse of `arm_name`."""
    return arm.removesuffix(FAILOVER_SUFFIX).removesuffix(BACKED_SUFFIX)
