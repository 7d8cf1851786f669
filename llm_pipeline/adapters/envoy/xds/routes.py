"""Weighted routes: written for a state of the traffic, and read back; what users may not ask for has none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from http import HTTPStatus

from llm_pipeline.adapters.envoy.adapter import UserLimits
from llm_pipeline.adapters.envoy.xds.listener import BUFFER, LUA, STREAM_IDLE
from llm_pipeline.adapters.envoy.xds.messages import TYPE, Json, discovery, named
from llm_pipeline.canary.router import ROUTES, ArmProtocol, RouteState, SlotName, arm_name
from llm_pipeline.canary.users_paths import UsersApi

RELEASE_HEADER = "x-llm-release"
_LARGEST_LENGTH = 2**62
_REFUSING_GRPC_STATUSES = (2, 3, 5, 6, 7, 9, 11, 12)
"""What a server that answers at all says of a request: unknown, invalid argument, not found, and the like."""

_UNBUFFERED: Json = {
    "typed_per_filter_config": {
        BUFFER: {"@type": f"{TYPE}.extensions.filters.http.buffer.v3.BufferPerRoute", "disabled": True}
    }
}


def routes(
    state: RouteState,
    version: str,
    limits: UserLimits,
    releases: Mapping[str, str],
    apis: Mapping[ArmProtocol, UsersApi],
) -> Json:
    """Weighted routes. `validate_clusters` makes Envoy refuse a route to a cluster that does not exist.

    Bodies up to the largest one are kept until an answer begins, so that another server can be asked the same.

    Args:
        state: Where the traffic goes.
        version: What Envoy acknowledges.
        limits: What users may take.
        releases: What answers say of who gave them, by the address of the server, as the access log has it.
        apis: What users may ask for, by the protocol of the servers that are asked; the last one is read back.
    """
    table = {
        "@type": f"{TYPE}.config.route.v3.RouteConfiguration",
        "name": ROUTES,
        "validate_clusters": True,
        "virtual_hosts": [
            {
                "name": "users",
                "domains": ["*"],
                "include_attempt_count_in_response": True,
                "request_body_buffer_limit": limits.largest_request_bytes,
                "request_headers_to_remove": ["accept-encoding"],  # what is compressed cannot be read for the log
                **_named_release(releases),
                "routes": [
                    _refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _longer_than(limits.largest_request_bytes)),
                    *_offered(state, apis),
                    _refusal(HTTPStatus.NOT_FOUND, {}),
                ],
            }
        ],
    }
    return discovery(version, [table])


def _named_release(releases: Mapping[str, str]) -> Json:
    """The header that names the release: of the server that answered, also where another one had failed before it.

    Over gRPC it is metadata. A server's own header of that name is replaced; an answer of Envoy itself has none.
    """
    if not releases:
        return {}
    table = ", ".join(f"{json.dumps(address)}: {json.dumps(name)}" for address, name in sorted(releases.items()))
    value = f"%CEL({{{table}}}[upstream.address])%"
    header = {"header": {"key": RELEASE_HEADER, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
    return {"response_headers_to_add": [header]}


def _offered(state: RouteState, apis: Mapping[ArmProtocol, UsersApi]) -> Iterator[Json]:
    """The routes to the servers; all split alike."""
    for protocol, api in apis.items():
        weighted = _weighted(state, protocol, api)
        if protocol == "grpc":
            for path in api.grpc_calls:
                yield {"match": {"path": path, "grpc": {}}, "route": weighted}
            continue
        levels = {"metadata": {"filter_metadata": {LUA: {"json_levels": api.json_levels}}}}
        told = levels if api.json_levels is not None else {}
        for method, path in (("GET", api.reads), ("POST", api.asks)):
            asked = [{"name": ":method", "string_match": {"exact": method}}]
            yield {"match": {"safe_regex": {"regex": path}, "headers": asked}, "route": weighted, **told}


def _longer_than(length: int) -> Json:
    """A request that says itself that it is too long is refused before it is read."""
    return {"headers": [{"name": "content-length", "range_match": {"start": length + 1, "end": _LARGEST_LENGTH}}]}


def _refusal(status: HTTPStatus, match: Json) -> Json:
    """Envoy's own answer, at once; the listener puts it into words, and gRPC clients get a status of gRPC."""
    return {"match": {"prefix": "/", **match}, "direct_response": {"status": status.value}, **_UNBUFFERED}


def weights_of(document: Json) -> dict[str, int]:
    """Weights by cluster name of the HTTP route in a discovery response or a config dump's route table."""
    arms = _http_action(document)["weighted_clusters"]["clusters"]
    return {arm["name"]: int(arm.get("weight", 0)) for arm in arms}


def sticky_header_of(document: Json) -> str | None:
    """The header that keeps sessions in one arm, if the routes name one."""
    policies = _http_action(document).get("hash_policy")
    return str(policies[0]["header"]["header_name"]) if policies else None


def _http_action(document: Json) -> Json:
    """The action of the last route that leads to servers: all of them split alike."""
    table = document["resources"][0] if "resources" in document else document
    action: Json = [route["route"] for route in table["virtual_hosts"][0]["routes"] if "route" in route][-1]
    return action


def _weighted(state: RouteState, protocol: ArmProtocol, api: UsersApi) -> Json:
    action: Json = {
        "weighted_clusters": {"clusters": _arms(state, protocol)},
        "timeout": "0s",
        "idle_timeout": STREAM_IDLE,
        "retry_policy": _retry_policy(protocol, api, on_trial=state.candidate is not None),
    }
    if state.sticky_header:
        action["weighted_clusters"]["use_hash_policy"] = True
        action["hash_policy"] = [{"header": {"header_name": state.sticky_header}, "terminal": True}]
    return action


def _arms(state: RouteState, protocol: ArmProtocol) -> list[Json]:
    """The candidate first: with a hash policy its share then grows without moving a session back to stable."""
    slots: list[SlotName] = sorted(("blue", "green"), key=lambda slot: slot != state.candidate)
    return [{"name": arm_name(slot, protocol, state), "weight": state.weights.get(slot, 0)} for slot in slots]


def _retry_policy(protocol: ArmProtocol, api: UsersApi, *, on_trial: bool) -> Json:
    """Only before the first byte, and to the next priority: on trial, one slot's failure is answered by the other.

    Triton answers every error of a decoupled model with 400, its own internal ones and a full queue too, so while
    a candidate is on trial a refusal gets a second opinion from the other slot, and only one: a request that really is
    wrong would otherwise be asked a third time. What both refuse is the user's own mistake. Without a candidate
    a 500 is an answer: Triton gives it to what is no JSON.
    """
    conditions = ["reset", "connect-failure", "refused-stream"]
    if protocol == "grpc":
        conditions += ["unavailable", "internal", "resource-exhausted"]
    else:
        conditions.append("5xx" if on_trial else "gateway-error")
    policy: Json = {
        "num_retries": 1 if on_trial else 2,
        "retry_back_off": {"base_interval": "0.02s", "max_interval": "0.2s"},
        "retry_priority": named(
            "envoy.retry_priorities.previous_priorities",
            "extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig",
            update_frequency=1,
        ),
    }
    if on_trial and protocol != "grpc":
        conditions.append("retriable-status-codes")
        policy["retriable_status_codes"] = [status.value for status in api.second_opinions]
    if on_trial and protocol == "grpc":
        conditions.append("retriable-headers")
        refusing = {"safe_regex": {"regex": "|".join(str(status) for status in _REFUSING_GRPC_STATUSES)}}
        policy["retriable_headers"] = [{"name": "grpc-status", "string_match": refusing}]
    return {**policy, "retry_on": ",".join(conditions)}
