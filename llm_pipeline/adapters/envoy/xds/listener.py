"""What users connect to, and what is noted of each request; and the static part of the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path

from llm_pipeline.adapters.envoy.adapter import EnvoyPlace, ServerCertificate, UserLimits
from llm_pipeline.adapters.envoy.xds.messages import TYPE, Json, address, discovery, named, watched
from llm_pipeline.canary.router import ROUTES, STAT_PREFIX

LUA = "envoy.filters.http.lua"
BUFFER = "envoy.filters.http.buffer"
STREAM_IDLE = "300s"
HEADER_SECONDS = 10.0
"""Longest time to send the headers of a request, and to agree on TLS."""

STREAMS_PER_CONNECTION = 128
"""Requests at once on one HTTP/2 connection; further ones wait."""

_LUA_FILES = ("bodies.lua", "answers.lua")
_CERTIFICATE = "server"
_NOBODY = {"address_prefix": "0.0.0.0", "prefix_len": 32}  # noqa: S104 - an empty list means all private networks
_LARGEST_HEADERS_KIB = 60
_STREAM_WINDOW_BYTES = 256 * 1024
_CONNECTION_WINDOW_BYTES = 1024 * 1024
_BUCKETS_MILLISECONDS = [1, 2, 5, 10, 20, 50, 100, 150, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 5000, 10000, 60000]

IN_FLIGHT_INTERVAL = "1s"
"""Between the lines of a request in flight; its last one is written when it ends."""

ACCESS_LOG_FIELDS: Mapping[str, str] = {
    "started_at": "%START_TIME(%s.%3f)%",
    "type": "%ACCESS_LOG_TYPE%",
    "id": "%STREAM_ID%",
    "cluster": "%UPSTREAM_CLUSTER%",
    "host": "%UPSTREAM_HOST%",
    "code": "%RESPONSE_CODE%",
    "grpc_status": "%GRPC_STATUS_NUMBER%",
    "flags": "%RESPONSE_FLAGS%",
    "first_byte_ms": "%RESPONSE_DURATION%",
    "total_ms": "%DURATION%",
    "asked_ms": "%REQUEST_DURATION%",
    "stream_ms": "%RESPONSE_TX_DURATION%",
    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "path": "%REQ(:PATH)%",
    "stream": "%DYNAMIC_METADATA(envoy.filters.http.lua:stream)%",
    "reported_error": "%DYNAMIC_METADATA(envoy.filters.http.lua:error)%",
    "output_tokens": "%DYNAMIC_METADATA(envoy.filters.http.lua:output_tokens)%",
    "finish_reason": "%DYNAMIC_METADATA(envoy.filters.http.lua:finish_reason)%",
    "has_text": "%DYNAMIC_METADATA(envoy.filters.http.lua:has_text)%",
    "repetition": "%DYNAMIC_METADATA(envoy.filters.http.lua:repetition)%",
}
"""A JSON line for each request that ended, and one a second for each in flight.

UPSTREAM_HOST is the final attempt's; UPSTREAM_CLUSTER names the arm that was chosen.
"""


def bootstrap(directory: Path, admin_port: int, limits: UserLimits) -> Json:
    """The static part: admin interface on loopback, statistics, limits, and where the dynamic files are."""
    return {
        "node": {"id": "router", "cluster": "llm-pipeline"},
        "admin": {"address": address(admin_port)},
        "stats_flush_interval": "1s",
        "stats_config": {
            "histogram_bucket_settings": [{"match": {"prefix": "cluster."}, "buckets": _BUCKETS_MILLISECONDS}]
        },
        "dynamic_resources": {
            "cds_config": watched(directory, "cds.json"),
            "lds_config": watched(directory, "lds.json"),
        },
        "overload_manager": overload_manager(limits),
    }


def listeners(directory: Path, place: EnvoyPlace, access_log: Path) -> Json:
    """The one listener that users talk to: HTTP/1.1 and HTTP/2 (gRPC) on one port, with TLS where there is a key.

    A request with one message is read whole before a server is asked: who sends slowly keeps no server waiting.
    """
    largest = place.limits.largest_request_bytes
    manager = {
        "@type": f"{TYPE}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": STAT_PREFIX,
        "codec_type": "AUTO",
        "generate_request_id": True,
        "drain_timeout": "30s",
        **_for_strangers(place),
        "rds": {"route_config_name": ROUTES, "config_source": watched(directory, "rds.json")},
        "access_log": [_access_log(access_log)],
        "access_log_options": {"access_log_flush_interval": IN_FLIGHT_INTERVAL},
        "http_filters": [
            _answers(),
            named(BUFFER, "extensions.filters.http.buffer.v3.Buffer", max_request_bytes=largest),
            named("envoy.filters.http.router", "extensions.filters.http.router.v3.Router"),
        ],
    }
    chain: Json = {
        "filters": [{"name": "manager", "typed_config": manager}],
        "transport_socket_connect_timeout": f"{HEADER_SECONDS:g}s",
    }
    if place.tls is not None:
        chain["transport_socket"] = _tls(directory)
    listener = {
        "@type": f"{TYPE}.config.listener.v3.Listener",
        "name": STAT_PREFIX,
        "address": address(place.port, place.address),
        "filter_chains": [chain],
    }
    return discovery("1", [listener])


def _for_strangers(place: EnvoyPlace) -> Json:
    """What everybody may do who reaches the port: paths have one form, headers command nothing, nothing takes for ever.

    A stream may last: only one without a byte in either direction ends, and a request that is not sent to its end.
    """
    limits = place.limits
    return {
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "use_remote_address": True,  # or everybody could send Envoy's own headers, which set timeouts and retries
        "internal_address_config": {"cidr_ranges": [_NOBODY]},
        "stream_idle_timeout": STREAM_IDLE,
        "request_timeout": STREAM_IDLE,
        "request_headers_timeout": f"{HEADER_SECONDS:g}s",
        "max_request_headers_kb": _LARGEST_HEADERS_KIB,
        "common_http_protocol_options": {"idle_timeout": STREAM_IDLE, "max_headers_count": 100},
        "http2_protocol_options": {
            "max_concurrent_streams": STREAMS_PER_CONNECTION,
            "initial_stream_window_size": _STREAM_WINDOW_BYTES,
            "initial_connection_window_size": _CONNECTION_WINDOW_BYTES,
        },
        "local_reply_config": {"mappers": [*_refusals(limits)]},
    }


def _refusals(limits: UserLimits) -> Iterator[Json]:
    """Envoy's own answers, as clients of OpenAI's API and of Triton's expect them."""
    by_openais_api = {"header_filter": {"header": {"name": ":path", "string_match": {"prefix": "/v1/"}}}}
    words = {
        HTTPStatus.NOT_FOUND: "not offered: ask by /v1/chat/completions or /v1/completions",
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE: f"the request is larger than {limits.largest_request_mib} MiB",
    }
    for status, text in words.items():
        code = {"default_value": status.value, "runtime_key": f"refusals.{status.value}"}
        of_status = {"status_code_filter": {"comparison": {"op": "EQ", "value": code}}}
        yield {
            "filter": {"and_filter": {"filters": [of_status, by_openais_api]}},
            "body_format_override": {"json_format": {"error": {"message": text, "type": "invalid_request_error"}}},
        }
        yield {"filter": of_status, "body_format_override": {"json_format": {"error": text}}}


def secrets(tls: ServerCertificate) -> Json:
    """The listener's certificate by its paths; a rename in their directory makes Envoy read them again."""
    certificate = {
        "certificate_chain": {"filename": tls.certificate},
        "private_key": {"filename": tls.key},
        "watched_directory": {"path": tls.directory},
    }
    secret_type = f"{TYPE}.extensions.transport_sockets.tls.v3.Secret"
    return discovery("1", [{"@type": secret_type, "name": _CERTIFICATE, "tls_certificate": certificate}])


def _tls(directory: Path) -> Json:
    certificate = {"name": _CERTIFICATE, "sds_config": watched(directory, "sds.json")}
    common = {"alpn_protocols": ["h2", "http/1.1"], "tls_certificate_sds_secret_configs": [certificate]}
    message = "extensions.transport_sockets.tls.v3.DownstreamTlsContext"
    return named("envoy.transport_sockets.tls", message, common_tls_context=common)


def _access_log(path: Path) -> Json:
    return named(
        "envoy.access_loggers.file",
        "extensions.access_loggers.file.v3.FileAccessLog",
        path=str(path),
        log_format={"json_format": dict(ACCESS_LOG_FIELDS)},
    )


def _answers() -> Json:
    """The filter that reads answers for the access log."""
    source = {"inline_string": "\n".join((files(__package__) / name).read_text() for name in _LUA_FILES)}
    return named(LUA, "extensions.filters.http.lua.v3.Lua", default_source_code=source)


_HEAP = "envoy.resource_monitors.fixed_heap"
_CONNECTIONS = "envoy.resource_monitors.global_downstream_max_connections"
_MONITORS = "extensions.resource_monitors"
_TRACKED_BYTES_POWER = 20


def overload_manager(limits: UserLimits) -> Json:
    """What Envoy gives up when all users together ask for too much: new connections, requests, then the largest ones.

    The limits are of the whole process: Envoy keeps no count of connections by address, which is a firewall's work.
    """
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
