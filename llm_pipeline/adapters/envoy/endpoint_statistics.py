"""What Envoy's admin interface counts for one server."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.arm_names import MIRROR_SUFFIX


class EndpointStatistics(Frozen):
    """What the router counted for one server, over every cluster that it is in.

    Attributes:
        attempts: Requests sent to it, hidden retries included.
        failures: Attempts that failed, and connections that could not be made.
        active: Requests in flight.
        healthy: The router would send requests to it.
    """

    attempts: int
    failures: int
    active: int
    healthy: bool


def endpoint_statistics(listing: dict[str, Any], addresses: Collection[tuple[str, int]]) -> EndpointStatistics:
    """Counters of the server at these addresses, from a listing of all clusters."""
    attempts = failures = active = 0
    healthy = True
    for cluster in listing.get("cluster_statuses", []):
        if cluster["name"].endswith(MIRROR_SUFFIX):
            continue  # copies are no users' requests
        for host in cluster.get("host_statuses", []):
            at = host["address"]["socket_address"]
            if (at["address"], at["port_value"]) not in addresses:
                continue
            values = {entry["name"]: int(entry.get("value", 0)) for entry in host.get("stats", [])}
            attempts += values.get("rq_total", 0)
            failures += values.get("rq_error", 0) + values.get("cx_connect_fail", 0)
            active += values.get("rq_active", 0)
            health = host.get("health_status", {})
            healthy &= not (health.get("failed_active_health_check") or health.get("failed_outlier_check"))
    return EndpointStatistics(attempts=attempts, failures=failures, active=active, healthy=healthy)
