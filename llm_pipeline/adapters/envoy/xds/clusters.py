"""The clusters of every slot and protocol."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from llm_pipeline.adapters.envoy.xds.messages import LOCAL_HOST, TYPE, Json, address, addresses_of, discovery, named
from llm_pipeline.canary.router import (
    BACKED_SUFFIX,
    FAILOVER_SUFFIX,
    GUARDED_SUFFIX,
    ArmProtocol,
    SlotName,
    cluster_name,
    other_slot,
)
from llm_pipeline.canary.users_paths import UsersApi, apis_of
from llm_pipeline.config.server_place import SlotServer

_BREAKERS = {
    "thresholds": [{"max_connections": 4096, "max_pending_requests": 4096, "max_requests": 4096, "max_retries": 256}]
}

_SHORTER = {"idle_timeout": "60s"}
"""Than the endpoint keeps a connection, which would end while a request is on its way."""


def clusters(slots: Mapping[SlotName, SlotServer], host: str = LOCAL_HOST, *, only_openai: bool = False) -> Json:
    """All clusters of every slot and protocol; `host` is where the slots' ports are."""
    apis = apis_of(slots, only_openai=only_openai)
    resources = [
        cluster
        for slot, server in slots.items()
        for protocol, (where, port) in addresses_of(server, host, only_openai=only_openai).items()
        for cluster in _slot_clusters(slot, protocol, address(port, where), apis[protocol])
    ]
    return discovery("1", resources)


def _slot_clusters(slot: SlotName, protocol: ArmProtocol, at: Json, api: UsersApi) -> list[Json]:
    name = cluster_name(slot, protocol)
    plain = _static_cluster(name, protocol, at)
    guarded = {**_static_cluster(f"{name}{GUARDED_SUFFIX}", protocol, at), **_guard(protocol, api)}
    other = cluster_name(other_slot(slot), protocol)
    failover = _aggregate_cluster(f"{name}{FAILOVER_SUFFIX}", [guarded["name"], other, name])
    backed = _aggregate_cluster(f"{name}{BACKED_SUFFIX}", [name, other])
    return [plain, guarded, failover, backed]


def _aggregate_cluster(name: str, members: list[str]) -> Json:
    """The first member with a healthy server; a retry goes to the next one.

    Only a guarded member can be unhealthy. It comes again unguarded at the end: where the other one fails too, a server
    that was refused by an earlier check may answer by now.
    """
    return {
        "@type": f"{TYPE}.config.cluster.v3.Cluster",
        "name": name,
        "connect_timeout": "1s",
        "lb_policy": "CLUSTER_PROVIDED",
        "circuit_breakers": _BREAKERS,  # its own: the default allows three retries at a time
        "cluster_type": named(
            "envoy.clusters.aggregate", "extensions.clusters.aggregate.v3.ClusterConfig", clusters=members
        ),
    }


def _static_cluster(name: str, protocol: ArmProtocol, at: Json) -> Json:
    options = "http2_protocol_options" if protocol == "grpc" else "http_protocol_options"
    extension = f"{TYPE}.extensions.upstreams.http.v3.HttpProtocolOptions"
    endpoint = {"endpoint": {"address": at}}
    return {
        "@type": f"{TYPE}.config.cluster.v3.Cluster",
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "lb_policy": "LEAST_REQUEST",
        "ignore_health_on_host_removal": True,
        "circuit_breakers": _BREAKERS,
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": extension,
                "explicit_http_config": {options: {}},
                **({"common_http_protocol_options": _SHORTER} if protocol == "openai" else {}),
            }
        },
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
    }


def _guard(protocol: ArmProtocol, api: UsersApi) -> Json:
    """What only a slot on trial has: on stable, an ejection could take the last server away."""
    guard: Json = {
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "outlier_detection": {
            "enforcing_consecutive_5xx": 0,  # Triton answers 500 to what is no JSON: users would eject it
            "consecutive_gateway_failure": 5,
            "enforcing_consecutive_gateway_failure": 100,
            "consecutive_local_origin_failure": 2,
            "split_external_local_origin_errors": True,
            "interval": "0.5s",
            "base_ejection_time": "3s",
            "max_ejection_percent": 100,
        },
    }
    if protocol != "grpc":
        well = {"start": HTTPStatus.OK.value, "end": int(api.healthy_below)}
        probe = {"path": api.health, "expected_statuses": [well]}
        times = {"timeout": "2s", "interval": "1s", "no_traffic_interval": "1s"}
        thresholds = {"unhealthy_threshold": 2, "healthy_threshold": 1}
        guard["health_checks"] = [{**times, **thresholds, "http_health_check": probe}]
    return guard
