"""Envoy's configuration for one target, as data: bootstrap, listener, clusters and weighted routes (xDS v3).

Each slot has a plain cluster and, for the time it is on trial, a guarded one (outlier detection, no panic mode,
active health checks) behind an aggregate `<slot>_failover` that falls back to the other slot's plain cluster.
Stable answers meanwhile through an aggregate `<slot>_backed`, whose failures are tried again on the candidate; nothing
ejects its server, which may be the only one that works.
Copies for a mirror have a cluster of their own, whose breakers they cannot take from users.
All of them exist from the start: moving traffic changes routes only, never clusters.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

from llm_pipeline.canary.router import Mirror, RouteState, SlotName, other_slot
from llm_pipeline.config.router_place import EnvoyPlace, ExistingEnvoyPlace, ServerCertificate
from llm_pipeline.config.server_ports import ServerPorts

ROUTES = "main"
STAT_PREFIX = "ingress"
FAILOVER_SUFFIX = "_failover"
BACKED_SUFFIX = "_backed"
GUARDED_SUFFIX = "_guarded"
MIRROR_SUFFIX = "_mirror"
LOCAL_HOST = "127.0.0.1"
GRPC_PREFIX = "/inference.GRPCInferenceService/"
STREAM_IDLE = "300s"

Protocol = Literal["http", "grpc"]
Json = dict[str, Any]

_TYPE = "type.googleapis.com/envoy"
_BREAKERS = {
    "thresholds": [{"max_connections": 4096, "max_pending_requests": 4096, "max_requests": 4096, "max_retries": 256}]
}
_MIRROR_BREAKERS = {
    "thresholds": [{"max_connections": 64, "max_pending_requests": 64, "max_requests": 64, "max_retries": 0}]
}
"""A slow mirror keeps at most this many copies waiting; further ones are not sent."""

_CERTIFICATE = "server"
_BUCKETS_MILLISECONDS = [1, 2, 5, 10, 20, 50, 100, 150, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 5000, 10000, 60000]

ACCESS_LOG_FIELDS: Mapping[str, str] = {
    "started_at": "%START_TIME(%s.%3f)%",
    "cluster": "%UPSTREAM_CLUSTER%",
    "host": "%UPSTREAM_HOST%",
    "code": "%RESPONSE_CODE%",
    "grpc_status": "%GRPC_STATUS_NUMBER%",
    "flags": "%RESPONSE_FLAGS%",
    "first_byte_ms": "%RESPONSE_DURATION%",
    "total_ms": "%DURATION%",
    "stream_ms": "%RESPONSE_TX_DURATION%",
    "bytes": "%BYTES_SENT%",
    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "path": "%REQ(:PATH)%",
    "request_bytes": "%BYTES_RECEIVED%",
    "reported_error": "%DYNAMIC_METADATA(envoy.filters.http.lua:error)%",
    "output_tokens": "%DYNAMIC_METADATA(envoy.filters.http.lua:output_tokens)%",
    "finish_reason": "%DYNAMIC_METADATA(envoy.filters.http.lua:finish_reason)%",
    "has_text": "%DYNAMIC_METADATA(envoy.filters.http.lua:has_text)%",
    "session": "%DYNAMIC_METADATA(envoy.filters.http.lua:session)%",
}
"""One JSON line a request. UPSTREAM_HOST is the final attempt's; UPSTREAM_CLUSTER names the arm that was chosen."""

_LUA = "envoy.filters.http.lua"

_READ_ANSWERS = """
local FILTER = "envoy.filters.http.lua"
local KEPT = 255

local function fingerprint(value)
  local one, other = 7, 11
  for at = 1, math.min(#value, 256) do
    local byte = string.byte(value, at)
    one = (one * 131 + byte) % 2147483647
    other = (other * 257 + byte) % 2147483629
  end
  return string.format("%08x%08x", one, other)
end

local function put(handle, key, value)
  handle:streamInfo():dynamicMetadata():set(FILTER, key, value)
end

local function each(tails, pattern, text, found)
  local joined, from = (tails[pattern] or "\\n") .. text, 1
  while true do
    local first, last, value = string.find(joined, pattern, from)
    if not first then break end
    found(value)
    from = last + 1
  end
  tails[pattern] = string.sub(joined, math.max(from, #joined - KEPT + 1))
end

function envoy_on_request(handle)
  local header = handle:metadata():get("session_header")
  local value = header and handle:headers():get(header)
  if value then put(handle, "session", fingerprint(value)) end
end

function envoy_on_response(handle)
  local kind = handle:headers():get("content-type") or ""
  if string.find(kind, "^application/grpc") then return end
  local tails, tokens, reason, has_text = {}, nil, nil, nil
  local function failed() put(handle, "error", "1") end
  local function count(number) tokens = (tokens or 0) + tonumber(number) end
  local function ended(word) reason = word end
  local function wrote() has_text = true end
  for chunk in handle:bodyChunks() do
    local length = chunk:length()
    if length > 0 then
      local text = chunk:getBytes(0, length)
      each(tails, "\\ndata: *{ *\\"error\\"", text, failed)
      if not tails.begun then
        tails.begun = true
        if string.find(text, "^%s*{ *\\"error\\"") then failed() end
      end
      each(tails, "\\"output_tokens\\": *(%d+)%s*[,}]", text, count)
      each(tails, "\\"finish_reason\\": *\\"([%w_]+)\\"", text, ended)
      if not has_text then each(tails, "\\"text_output\\": *\\"[^\\"]", text, wrote) end
    end
  end
  put(handle, "has_text", has_text and "1" or "0")
  if tokens then put(handle, "output_tokens", tokens) end
  if reason then put(handle, "finish_reason", string.sub(reason, 1, 32)) end
end
"""
"""Triton reports some failures, and all of those inside a stream, under status 200; the log must still see them.

And what users got: tokens (of all chunks), the last finish reason, whether there was any text. A field may be split
over chunks, so the end of what was searched is kept, but no more of it than a field is long. Of a session's name only
a fingerprint leaves this filter; it is no cryptographic one, so names should be long random ones. Answers that broke
off leave nothing: their flags tell.
"""


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


def bootstrap(directory: Path, admin_port: int) -> Json:
    """The static part: admin interface on loopback, statistics, and where the dynamic files are."""
    return {
        "node": {"id": "router", "cluster": "llm-pipeline"},
        "admin": {"address": _address(admin_port)},
        "stats_flush_interval": "1s",
        "stats_config": {
            "histogram_bucket_settings": [{"match": {"prefix": "cluster."}, "buckets": _BUCKETS_MILLISECONDS}]
        },
        "dynamic_resources": {
            "cds_config": _watched(directory, "cds.json"),
            "lds_config": _watched(directory, "lds.json"),
        },
    }


def listeners(directory: Path, place: EnvoyPlace | ExistingEnvoyPlace, access_log: Path) -> Json:
    """The one listener that users talk to: HTTP/1.1 and HTTP/2 (gRPC) on one port, with TLS where there is a key."""
    manager = {
        "@type": f"{_TYPE}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": STAT_PREFIX,
        "codec_type": "AUTO",
        "generate_request_id": True,
        "stream_idle_timeout": STREAM_IDLE,
        "drain_timeout": "30s",
        "http2_protocol_options": {"max_concurrent_streams": 1000},
        "rds": {"route_config_name": ROUTES, "config_source": _watched(directory, "rds.json")},
        "access_log": [_access_log(access_log)],
        "http_filters": [_lua(), _named("envoy.filters.http.router", "extensions.filters.http.router.v3.Router")],
    }
    chain: Json = {"filters": [{"name": "manager", "typed_config": manager}]}
    if place.tls is not None:
        chain["transport_socket"] = _tls(directory)
    listener = {
        "@type": f"{_TYPE}.config.listener.v3.Listener",
        "name": STAT_PREFIX,
        "address": _address(place.port, place.address),
        "filter_chains": [chain],
    }
    return _discovery("1", [listener])


def secrets(tls: ServerCertificate) -> Json:
    """The listener's certificate by its paths; a rename in their directory makes Envoy read them again."""
    certificate = {
        "certificate_chain": {"filename": tls.certificate},
        "private_key": {"filename": tls.key},
        "watched_directory": {"path": tls.directory},
    }
    secret_type = f"{_TYPE}.extensions.transport_sockets.tls.v3.Secret"
    return _discovery("1", [{"@type": secret_type, "name": _CERTIFICATE, "tls_certificate": certificate}])


def clusters(slots: Mapping[SlotName, ServerPorts], host: str = LOCAL_HOST) -> Json:
    """All clusters of every slot and protocol; `host` is where the slots' ports are."""
    resources = [
        cluster
        for slot, ports in slots.items()
        for protocol, port in (("http", ports.http), ("grpc", ports.grpc))
        for cluster in _slot_clusters(slot, protocol, _address(port, host))  # type: ignore[arg-type]
    ]
    return _discovery("1", resources)


def routes(state: RouteState, version: str) -> Json:
    """Weighted routes. `validate_clusters` makes Envoy refuse a route to a cluster that does not exist."""
    table = {
        "@type": f"{_TYPE}.config.route.v3.RouteConfiguration",
        "name": ROUTES,
        "validate_clusters": True,
        "virtual_hosts": [
            {
                "name": "users",
                "domains": ["*"],
                "include_attempt_count_in_response": True,
                "routes": [
                    {"match": {"prefix": GRPC_PREFIX}, "route": _weighted(state, "grpc"), **_for_the_filter(state)},
                    {"match": {"prefix": "/"}, "route": _weighted(state, "http"), **_for_the_filter(state)},
                ],
            }
        ],
    }
    return _discovery(version, [table])


def _for_the_filter(state: RouteState) -> Json:
    """What the filter that reads answers has to know of a route: the header that names the session."""
    if state.sticky_header is None:
        return {}
    return {"metadata": {"filter_metadata": {_LUA: {"session_header": state.sticky_header}}}}


def weights_of(document: Json) -> dict[str, int]:
    """Weights by cluster name of the HTTP route in a discovery response or a config dump's route table."""
    table = document["resources"][0] if "resources" in document else document
    action = table["virtual_hosts"][0]["routes"][-1]["route"]
    return {arm["name"]: int(arm.get("weight", 0)) for arm in action["weighted_clusters"]["clusters"]}


def sticky_header_of(document: Json) -> str | None:
    """The header that keeps sessions in one arm, if the routes name one."""
    action = document["resources"][0]["virtual_hosts"][0]["routes"][-1]["route"]
    policies = action.get("hash_policy")
    return str(policies[0]["header"]["header_name"]) if policies else None


def mirror_of(document: Json) -> Mirror | None:
    """Where the routes copy requests to, if they do."""
    action = document["resources"][0]["virtual_hosts"][0]["routes"][-1]["route"]
    policies = action.get("request_mirror_policies")
    if not policies:
        return None
    share = policies[0]["runtime_fraction"]["default_value"]["numerator"]
    return Mirror.model_validate({"slot": policies[0]["cluster"].removesuffix(MIRROR_SUFFIX), "share": share})


def _weighted(state: RouteState, protocol: Protocol) -> Json:
    action: Json = {
        "weighted_clusters": {"clusters": _arms(state, protocol)},
        "timeout": "0s",
        "idle_timeout": STREAM_IDLE,
        "retry_policy": _retry_policy(protocol, on_trial=state.candidate is not None),
    }
    if state.sticky_header:
        action["weighted_clusters"]["use_hash_policy"] = True
        action["hash_policy"] = [{"header": {"header_name": state.sticky_header}, "terminal": True}]
    if state.mirror:
        fraction = {"default_value": {"numerator": state.mirror.share, "denominator": "TEN_THOUSAND"}}
        mirror = cluster_name(state.mirror.slot, protocol) + MIRROR_SUFFIX
        action["request_mirror_policies"] = [{"cluster": mirror, "runtime_fraction": fraction}]
    return action


def _arms(state: RouteState, protocol: Protocol) -> list[Json]:
    """The candidate first: with a hash policy its share then grows without moving a session back to stable."""
    slots: list[SlotName] = sorted(("blue", "green"), key=lambda slot: slot != state.candidate)
    return [{"name": arm_name(slot, protocol, state.candidate), "weight": state.weights.get(slot, 0)} for slot in slots]


def _retry_policy(protocol: Protocol, *, on_trial: bool) -> Json:
    """Only before the first byte, and to the next priority: on trial, one slot's failure is answered by the other.

    Triton answers every error of a decoupled model with 400, its own internal ones and a full queue too, so while
    a candidate is on trial a 400 gets a second opinion from the other slot; a request that really is wrong gets it
    twice.
    """
    conditions = ["reset", "connect-failure", "refused-stream"]
    conditions += ["5xx"] if protocol == "http" else ["unavailable", "internal", "resource-exhausted"]
    policy: Json = {
        "num_retries": 2,
        "retry_back_off": {"base_interval": "0.02s", "max_interval": "0.2s"},
        "retry_priority": _named(
            "envoy.retry_priorities.previous_priorities",
            "extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig",
            update_frequency=1,
        ),
    }
    if on_trial and protocol == "http":
        conditions.append("retriable-status-codes")
        policy["retriable_status_codes"] = [HTTPStatus.BAD_REQUEST.value]
    return {**policy, "retry_on": ",".join(conditions)}


def _slot_clusters(slot: SlotName, protocol: Protocol, address: Json) -> list[Json]:
    name = cluster_name(slot, protocol)
    plain = _static_cluster(name, protocol, address)
    guarded = {**_static_cluster(f"{name}{GUARDED_SUFFIX}", protocol, address), **_guard(protocol)}
    mirror = _static_cluster(f"{name}{MIRROR_SUFFIX}", protocol, address) | {"circuit_breakers": _MIRROR_BREAKERS}
    other = cluster_name(other_slot(slot), protocol)
    failover = _aggregate_cluster(f"{name}{FAILOVER_SUFFIX}", [guarded["name"], other])
    backed = _aggregate_cluster(f"{name}{BACKED_SUFFIX}", [name, other])
    return [plain, guarded, failover, backed, mirror]


def _aggregate_cluster(name: str, members: list[str]) -> Json:
    """The first member with a healthy server; a retry goes to the next one."""
    return {
        "@type": f"{_TYPE}.config.cluster.v3.Cluster",
        "name": name,
        "connect_timeout": "1s",
        "lb_policy": "CLUSTER_PROVIDED",
        "circuit_breakers": _BREAKERS,  # its own: the default allows three retries at a time
        "cluster_type": _named(
            "envoy.clusters.aggregate", "extensions.clusters.aggregate.v3.ClusterConfig", clusters=members
        ),
    }


def _static_cluster(name: str, protocol: Protocol, address: Json) -> Json:
    options = "http_protocol_options" if protocol == "http" else "http2_protocol_options"
    extension = f"{_TYPE}.extensions.upstreams.http.v3.HttpProtocolOptions"
    endpoint = {"endpoint": {"address": address}}
    return {
        "@type": f"{_TYPE}.config.cluster.v3.Cluster",
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
            }
        },
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
    }


def _guard(protocol: Protocol) -> Json:
    """What only a slot on trial has: on stable, an ejection could take the last server away."""
    guard: Json = {
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "outlier_detection": {
            "consecutive_5xx": 5,
            "consecutive_gateway_failure": 5,
            "consecutive_local_origin_failure": 2,
            "split_external_local_origin_errors": True,
            "interval": "0.5s",
            "base_ejection_time": "3s",
            "max_ejection_percent": 100,
        },
    }
    if protocol == "http":
        probe = {"path": "/v2/health/ready"}
        times = {"timeout": "2s", "interval": "1s", "no_traffic_interval": "1s"}
        thresholds = {"unhealthy_threshold": 2, "healthy_threshold": 1}
        guard["health_checks"] = [{**times, **thresholds, "http_health_check": probe}]
    return guard


def _tls(directory: Path) -> Json:
    certificate = {"name": _CERTIFICATE, "sds_config": _watched(directory, "sds.json")}
    common = {"alpn_protocols": ["h2", "http/1.1"], "tls_certificate_sds_secret_configs": [certificate]}
    message = "extensions.transport_sockets.tls.v3.DownstreamTlsContext"
    return _named("envoy.transport_sockets.tls", message, common_tls_context=common)


def _access_log(path: Path) -> Json:
    return _named(
        "envoy.access_loggers.file",
        "extensions.access_loggers.file.v3.FileAccessLog",
        path=str(path),
        log_format={"json_format": dict(ACCESS_LOG_FIELDS)},
    )


def _lua() -> Json:
    source = {"inline_string": _READ_ANSWERS}
    return _named(_LUA, "extensions.filters.http.lua.v3.Lua", default_source_code=source)


def _named(name: str, message: str, **fields: Any) -> Json:
    return {"name": name, "typed_config": {"@type": f"{_TYPE}.{message}", **fields}}


def _watched(directory: Path, file: str) -> Json:
    source = {"path": str(directory / file), "watched_directory": {"path": str(directory)}}
    return {"resource_api_version": "V3", "path_config_source": source}


def _address(port: int, host: str = LOCAL_HOST) -> Json:
    return {"socket_address": {"address": host, "port_value": port}}


def _discovery(version: str, resources: list[Json]) -> Json:
    return {"version_info": version, "resources": resources}
