"""Whole canaries over a route of the Gateway API, judged by counts: nothing fails over, no request is seen by itself.

The gateway is a double of its controller, which sets a real Envoy; users, slots, counters and the controller are real.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from custom_resources import CustomResources
from envoy_counts import EnvoyStatistics
from gateway_controller import GatewayController
from live_site import Trial
from router_contract import NAMESPACE, KubernetesSubject, gateway_subject, until

from llm_pipeline.canary.record import Phase
from llm_pipeline.canary.router import ALL, RouteState, SlotName, all_to
from llm_pipeline.canary.traffic import CountedTraffic

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

SERVICES: dict[str, SlotName] = {"llm-blue": "blue", "llm-green": "green"}


@pytest.fixture
def subject(double_cluster: CustomResources) -> KubernetesSubject:
    return gateway_subject(double_cluster)


@pytest.fixture
def routed(trial: Trial, double_cluster: CustomResources, subject: KubernetesSubject) -> Iterator[Trial]:
    """A trial whose traffic is moved by an HTTPRoute only; users come through the gateway's Envoy."""
    envoy = trial.site.router

    def act(weights: dict[str, int]) -> None:
        green = round(weights.get("green", 0) / sum(weights.values()) * ALL)
        state = RouteState(weights={"blue": ALL - green, "green": green}, owner="gateway", epoch=0)
        revision = envoy.replace_routes(state)
        until(lambda: envoy.converged(revision) is True)

    for service in SERVICES:
        slices = {"name": f"{service}-1", "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": service}}
        endpoint = {"addresses": ["127.0.0.1"], "conditions": {"ready": True}}
        kind = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4"}
        double_cluster.apply("endpointslices", {**kind, "metadata": slices, "endpoints": [endpoint]})
    trial.router = subject.router
    trial.router.write(all_to(trial.stable, owner="before", epoch=0), None)
    trial.traffic = CountedTraffic(EnvoyStatistics(envoy))
    gateway = GatewayController(double_cluster, NAMESPACE, "llm", SERVICES, act)
    yield trial
    gateway.stop()


def test_a_healthy_release_is_promoted_and_nobody_loses_a_request(routed: Trial) -> None:
    routed.reach(1, 5, 25, 50, 100)
    assert routed.record.phase is Phase.PROMOTED
    until_settled = {routed.candidate: 9_800, routed.stable: 200}
    assert routed.router.read()[0].weights == until_settled
    assert routed.site.weights() == until_settled
    assert routed.lost == {}


def test_a_release_that_fails_is_taken_back_for_good(routed: Trial) -> None:
    routed.reach(1, 5)
    routed.site.control.fault(routed.candidate, failure_fraction=1.0)
    assert routed.step(25).verdict == "NO_GO"
    routed.assert_rolled_back()
    assert routed.router.read()[0].weights[routed.stable] == ALL
    after = routed.lost
    routed.site.await_answers(100)
    assert routed.lost == after, "once all traffic is back, nothing more is lost"
