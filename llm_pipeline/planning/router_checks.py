"""Whether the servers and routers of a release's targets can do what its policy asks, before anything is spent."""

from __future__ import annotations

from collections.abc import Iterator

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.deployment import TargetPlace
from llm_pipeline.config.loading import LoadedRelease
from llm_pipeline.config.policy import CanaryPolicy, LoadTestPolicy
from llm_pipeline.config.server_place import OpenAiServer


def check_routers(loaded: LoadedRelease) -> None:
    """Refuse policies that a router or a staging server cannot follow, and routers whose traffic cannot be judged.

    Raises:
        ConfigError: Naming every such target.
    """
    places, policy = loaded.deployment.places, loaded.release.policy
    problems = [
        f"target {target.name}: {problem}"
        for target in loaded.release.targets
        if (place := loaded.config.place_of(target.name)) in places
        for problem in (*server_problems(places[place], policy.load_test), *problems_of(places[place], policy.canary))
    ]
    if problems:
        raise ConfigError(
            "\n".join(problems),
            where=f"{loaded.path}: deployment {loaded.deployment.name}",
            hint="change the policy, or staging, router and metrics of the target's place",
        )


def router_warnings(loaded: LoadedRelease) -> Iterator[str]:
    """What the routers of a release's targets leave open to users, and only their operators can close."""
    for target in loaded.release.targets:
        place = loaded.deployment.places.get(loaded.config.place_of(target.name))
        if place is not None and place.router.left_to_its_operator:
            left = place.router.left_to_its_operator
            yield f"{target.name}: the operator of its {place.router.kind} router has to refuse users {left}"


def server_problems(place: TargetPlace, policy: LoadTestPolicy) -> Iterator[str]:
    """Why a place's staging server cannot be measured as a policy asks."""
    if isinstance(place.staging, OpenAiServer) and policy.second_opinion is not None:
        yield f"second_opinion is of Triton's endpoints only, and staging is kind: {place.staging.kind}"


def problems_of(place: TargetPlace, policy: CanaryPolicy) -> Iterator[str]:
    """Why a place's router and metrics cannot do what a policy asks."""
    router, metrics = place.router, place.metrics
    if policy.session_header is not None and not router.keeps_sessions:
        yield f"router {router.kind} keeps no sessions, and the policy has session_header {policy.session_header}"
    elif policy.session_header is not None and metrics is not None:
        yield f"metrics {metrics.kind} count requests, and the policy counts sessions"
    if fine := [percent for percent in policy.steps_percent if round(percent * 100.0, 6) % router.share_unit]:
        shares = ", ".join(f"{percent:g}" for percent in fine)
        yield f"router {router.kind} splits by {router.share_unit / 100.0:g} %, and steps_percent has {shares}"
    if metrics is None and not router.logs_requests:
        yield f"router {router.kind} keeps no record of requests, and no metrics are named"
    if metrics is not None:
        yield from metrics.problems(router)
    yield from router.problems(policy)
