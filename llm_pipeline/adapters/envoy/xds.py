"""Envoy's configuration for one target (xDS v3): the files of `templates/`, filled in, and routes that are read back.

Each slot has a plain cluster and, for the time it is on trial, a guarded one (outlier detection, no panic mode,
active health checks) behind an aggregate `<slot>_failover` that falls back to the other slot's plain cluster.
Stable answers meanwhile through an aggregate `<slot>_backed`, whose failures are tried again on the candidate; nothing
ejects its server, which may be the only one that works.
All of them exist from the start: moving traffic changes routes only, never clusters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from llm_pipeline.adapters.envoy.adapter import (
    LARGEST_REQUEST_BYTES,
    LARGEST_REQUEST_MIB,
    MEMORY_BYTES,
    MOST_CONNECTIONS,
    EnvoyPlace,
    ServerCertificate,
)
from llm_pipeline.base.durable import replace_durably
from llm_pipeline.base.yaml_template import render_yaml
from llm_pipeline.canary.access_log import BACKED_SUFFIX, FAILOVER_SUFFIX
from llm_pipeline.canary.router import (
    GUARDED_SUFFIX,
    ROUTES,
    STAT_PREFIX,
    ArmProtocol,
    RouteState,
    SlotName,
    arm_name,
    cluster_name,
    other_slot,
)
from llm_pipeline.canary.users_paths import UsersApi, apis_of
from llm_pipeline.config.server_place import OpenAiSlot, SlotServer

Json = dict[str, Any]
Address = tuple[str, int]

LOCAL_HOST = "127.0.0.1"
HEADER_SECONDS = 10.0
"""Longest time to send the headers of a request, and to agree on TLS."""

STREAMS_PER_CONNECTION = 128
"""Requests at once on one HTTP/2 connection; further ones wait."""

_STREAM_IDLE = "300s"
_REFUSING_GRPC_STATUSES = (2, 3, 5, 6, 7, 9, 11, 12)
"""What a server that answers at all says of a request: unknown, invalid argument, not found, and the like."""


def replace_json(path: Path, document: Json) -> None:
    """Write a JSON file durably and by one rename, so that a reader sees the old one or the new one.

    Raises:
        OSError: The disk refuses.
    """
    replace_durably(path, json.dumps(document).encode())


def addresses_of(server: SlotServer, *, only_openai: bool) -> dict[ArmProtocol, Address]:
    """Host and port by protocol."""
    if isinstance(server, OpenAiSlot):
        return {"http": server.address}
    if only_openai:
        return {"http": (LOCAL_HOST, server.openai)}
    ports: dict[ArmProtocol, int] = {"http": server.http, "grpc": server.grpc, "openai": server.openai}
    return {protocol: (LOCAL_HOST, port) for protocol, port in ports.items()}


def address_text(host: str, port: int) -> str:
    """An address as the access log has it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bootstrap(directory: Path, place: EnvoyPlace) -> Json:
    """The static part: admin interface on loopback, statistics, limits, and where the dynamic files are."""
    return _rendered(
        "bootstrap", directory, connections=MOST_CONNECTIONS, memory_bytes=MEMORY_BYTES, admin_port=place.admin_port
    )


def listeners(directory: Path, place: EnvoyPlace, access_log: Path) -> Json:
    """The one listener that users talk to: HTTP/1.1 and HTTP/2 (gRPC) on one port, with TLS where there is a key."""
    templates = files(__package__) / "templates"
    return _rendered(
        "listeners",
        directory,
        name=STAT_PREFIX,
        routes=ROUTES,
        place=place,
        largest=LARGEST_REQUEST_BYTES,
        access_log=str(access_log),
        lua="\n".join((templates / name).read_text(encoding="utf-8") for name in ("bodies.lua", "answers.lua")),
        header_time=f"{HEADER_SECONDS:g}s",
        stream_idle=_STREAM_IDLE,
        streams=STREAMS_PER_CONNECTION,
        refusals={
            404: "not offered: ask by /v1/chat/completions or /v1/completions",
            413: f"the request is larger than {LARGEST_REQUEST_MIB} MiB",
        },
    )


def secrets(tls: ServerCertificate) -> Json:
    """The listener's certificate by its paths; a rename in their directory makes Envoy read them again."""
    return _rendered("secrets", Path(), tls=tls)


def clusters(slots: Mapping[SlotName, SlotServer], *, only_openai: bool) -> Json:
    """All clusters of every slot and protocol."""
    apis = apis_of(slots, only_openai=only_openai)
    servers = [
        {
            "protocol": protocol,
            "api": apis[protocol],
            "address": {"socket_address": {"address": address[0], "port_value": address[1]}},
            "plain": (plain := cluster_name(slot, protocol)),
            "other": cluster_name(other_slot(slot), protocol),
            "guarded": plain + GUARDED_SUFFIX,
            "failover": plain + FAILOVER_SUFFIX,
            "backed": plain + BACKED_SUFFIX,
        }
        for slot, server in slots.items()
        for protocol, address in addresses_of(server, only_openai=only_openai).items()
    ]
    return _rendered("clusters", Path(), servers=servers)


def routes(state: RouteState, version: str, releases: Mapping[str, str], apis: Mapping[ArmProtocol, UsersApi]) -> Json:
    """Weighted routes.

    Args:
        state: Where the traffic goes.
        version: What Envoy acknowledges.
        releases: What answers say of who gave them, by the address of the server, as the access log has it.
        apis: What users may ask for, by the protocol of the servers that are asked; the last one is read back.
    """
    table = ", ".join(f"{json.dumps(address)}: {json.dumps(name)}" for address, name in sorted(releases.items()))
    return _rendered(
        "routes",
        Path(),
        name=ROUTES,
        version=version,
        largest=LARGEST_REQUEST_BYTES,
        release_of_server=f"%CEL({{{table}}}[upstream.address])%" if releases else "",
        apis=apis,
        actions={protocol: _action(state, protocol, api) for protocol, api in apis.items()},
    )


def weights_of(document: Json) -> dict[str, int]:
    """Weights by cluster name of the last route to servers, in a discovery response or a dump: all split alike."""
    table = document["resources"][0] if "resources" in document else document
    actions = [route["route"] for route in table["virtual_hosts"][0]["routes"] if "route" in route]
    return {arm["name"]: int(arm.get("weight", 0)) for arm in actions[-1]["weighted_clusters"]["clusters"]}


def _action(state: RouteState, protocol: ArmProtocol, api: UsersApi) -> Json:
    slots: list[SlotName] = sorted(("blue", "green"), key=lambda slot: slot != state.candidate)
    arms = [{"name": arm_name(slot, protocol, state), "weight": state.weights.get(slot, 0)} for slot in slots]
    return {
        "weighted_clusters": {"clusters": arms},
        "timeout": "0s",
        "idle_timeout": _STREAM_IDLE,
        "retry_policy": _retry_policy(protocol, api, on_trial=state.candidate is not None),
    }


def _retry_policy(protocol: ArmProtocol, api: UsersApi, *, on_trial: bool) -> Json:
    """Only before the first byte, and to the next priority: on trial, one slot's failure is answered by the other.

    Triton answers every error of a decoupled model with 400, its own internal ones and a full queue too, so while
    a candidate is on trial a refusal gets a second opinion from the other slot, and only one: a request that really is
    wrong would otherwise be asked a third time. What both refuse is the user's own mistake. Without a candidate
    a 500 is an answer: Triton gives it to what is no JSON.
    """
    conditions = ["reset", "connect-failure", "refused-stream"]
    policy: Json = {
        "num_retries": 1 if on_trial else 2,
        "retry_back_off": {"base_interval": "0.02s", "max_interval": "0.2s"},
        "retry_priority": {
            "name": "envoy.retry_priorities.previous_priorities",
            "typed_config": {
                "@type": "type.googleapis.com/"
                "envoy.extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig",
                "update_frequency": 1,
            },
        },
    }
    if protocol == "grpc":
        conditions += ["unavailable", "internal", "resource-exhausted"]
    else:
        conditions.append("5xx" if on_trial else "gateway-error")
    if on_trial and protocol == "grpc":
        conditions.append("retriable-headers")
        refusing = {"safe_regex": {"regex": "|".join(map(str, _REFUSING_GRPC_STATUSES))}}
        policy["retriable_headers"] = [{"name": "grpc-status", "string_match": refusing}]
    elif on_trial:
        conditions.append("retriable-status-codes")
        policy["retriable_status_codes"] = [status.value for status in api.second_opinions]
    return {**policy, "retry_on": ",".join(conditions)}


def _rendered(template: str, directory: Path, **values: Any) -> Json:
    def watched(file: str) -> Json:
        """A source of configuration: a file that is read again when its directory changes."""
        source = {"path": str(directory / file), "watched_directory": {"path": str(directory)}}
        return {"resource_api_version": "V3", "path_config_source": source}

    return render_yaml(__package__, "templates", f"{template}.yaml.jinja", {"watched": watched, **values})
