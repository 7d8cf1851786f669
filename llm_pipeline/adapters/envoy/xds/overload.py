"""What Envoy gives up when all users together ask for too much: new connections, then requests, then the largest ones.

The limits are of the whole process. One client's are those of its connections and streams (see `listener`): Envoy keeps
no count of connections by address, which is a firewall's work.
"""

from __future__ import annotations

from llm_pipeline.adapters.envoy.adapter import UserLimits
from llm_pipeline.adapters.envoy.xds.messages import Json, named

_HEAP = "envoy.resource_monitors.fixed_heap"
_CONNECTIONS = "envoy.resource_monitors.global_downstream_max_connections"
_MONITORS = "extensions.resource_monitors"
_TRACKED_BYTES_POWER = 20


def manager(limits: UserLimits) -> Json:
    """The overload manager of a bootstrap configuration."""
    heap = {"name": _HEAP, "threshold": {"value": 0.95}}
    rising = {"name": _HEAP, "scaled": {"scaling_threshold": 0.9, "saturation_threshold": 0.98}}
    return {
        "refresh_interval": "0.25s",
        "buffer_factory_config": {"minimum_account_to_track_power_of_two": _TRACKED_BYTES_POWER},
        "resource_monitors": [
            named(
                _CONNECTIONS,
                f"{_MONITORS}.downstream_connections.v3.DownstreamConnectionsConfig",
                max_active_downstream_connections=limits.connections,
            ),
            named(
                _HEAP, f"{_MONITORS}.fixed_heap.v3.FixedHeapConfig", max_heap_size_bytes=limits.memory_mib * 1024 * 1024
            ),
        ],
        "actions": [
            {"name": "envoy.overload_actions.reset_high_memory_stream", "triggers": [rising]},
            {"name": "envoy.overload_actions.stop_accepting_requests", "triggers": [heap]},
        ],
    }
