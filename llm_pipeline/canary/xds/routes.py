"""Weighted routes: written for a state of the traffic, and read back."""

from __future__ import annotations

from http import HTTPStatus

from llm_pipeline.canary.router import Mirror, RouteState, SlotName
from llm_pipeline.canary.xds.listener import LUA, STREAM_IDLE
from llm_pipeline.canary.xds.messages import TYPE, Json, discovery, named
from llm_pipeline.canary.xds.names import MIRROR_SUFFIX, ROUTES, Protocol, arm_name, cluster_name

GRPC_PREFIX = "/inference.GRPCInferenceService/"


def routes(state: RouteState, version: str) -> Json:
    """Weighted routes. `validate_clusters` makes Envoy refuse a route to a cluster that does not exist."""
    table = {
        "@type": f"{TYPE}.config.route.v3.RouteConfiguration",
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
    return discovery(version, [table])


def _for_the_filter(state: RouteState) -> Json:
    """What the filter that reads answers has to know of a route: the header that names the session."""
    if state.sticky_header is None:
        return {}
    return {"metadata": {"filter_metadata": {LUA: {"session_header": state.sticky_header}}}}


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
        "retry_priority": named(
            "envoy.retry_priorities.previous_priorities",
            "extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig",
            update_frequency=1,
        ),
    }
    if on_trial and protocol == "http":
        conditions.append("retriable-status-codes")
        policy["retriable_status_codes"] = [HTTPStatus.BAD_REQUEST.value]
    return {**policy, "retry_on": ",".join(conditions)}
