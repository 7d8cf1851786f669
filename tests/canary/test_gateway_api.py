"""The Gateway API's router on a double of the API server, and a real one: fences, races and trouble."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from custom_resources import CustomResources
from gateway_controller import GatewayController
from router_contract import GATEWAY_PLACE, HTTP_ROUTE, NAMESPACE, KubernetesSubject, gateway_subject, split
from simulated import Counts, Site
from waiting import until

from llm_pipeline.adapters.gateway_api.router import GatewayApiRouter
from llm_pipeline.base.errors import ConfigError, Fenced, Unsupported
from llm_pipeline.canary.controller import CountedTraffic
from llm_pipeline.canary.router import (
    ALL,
    Patience,
    RouterConflict,
    RouterRejected,
    RouterUnavailable,
    RouteState,
    SlotName,
    all_to,
)

SERVICES = ("llm-blue", "llm-green")


@pytest.fixture
def subject(cluster: CustomResources) -> KubernetesSubject:
    return gateway_subject(cluster)


@pytest.fixture
def gateway(cluster: CustomResources) -> Iterator[GatewayController]:
    controller = GatewayController(cluster, NAMESPACE, "llm", SERVICES)
    yield controller
    controller.stop()


class Routed(GatewayApiRouter):
    """Moves the traffic of a site in memory."""

    @property
    def state(self) -> RouteState:
        return self.read()[0]

    def usable(self, slot: SlotName) -> bool:  # noqa: ARG002 - no endpoints are told here
        return True


@pytest.mark.parametrize("faulty", [False, True])
@pytest.mark.usefixtures("fast", "subject", "gateway")
def test_a_canary_over_a_route_is_promoted_and_one_that_fails_is_rolled_back(tmp_path, monkeypatch, faulty):
    monkeypatch.setattr("simulated.PATIENCE", Patience(write=10.0, confirm=10.0, prove=0.02, usable=0.1))
    site = Site(tmp_path)
    site.router = Routed(GATEWAY_PLACE)
    site.traffic = CountedTraffic(Counts(site))
    assert site.steps(20, 50) == ["GO", "GO"]
    assert site.weights() == {"blue": 5_000, "green": 5_000}
    site.faulty = faulty
    assert site.step(100).verdict == ("NO_GO" if faulty else "GO")
    assert site.weights() == ({"blue": 10_000} if faulty else {"blue": 200, "green": 9_800})
    assert site.running == ({"blue"} if faulty else {"blue", "green"})


def test_whatever_else_is_in_the_route_stays(subject):
    canary = copy.deepcopy(HTTP_ROUTE)
    filters = [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["x-debug"]}}]
    canary["spec"]["rules"][0]["backendRefs"][0]["filters"] = filters
    canary["spec"]["rules"].append({"matches": [{"path": {"value": "/health"}}], "backendRefs": []})
    subject.api.apply("httproutes", canary)
    before = subject.document
    subject.router.write(split(500, epoch=3, owner="worker 7 of r1"), None)
    after = subject.document
    assert after["metadata"]["labels"] == {"team": "ml"}
    told = {name: text for name, text in after["metadata"]["annotations"].items() if name != "llm-pipeline/written"}
    assert told == {
        "llm-pipeline/owner": "worker 7 of r1", "llm-pipeline/epoch": "3", "llm-pipeline/candidate": "green",
    }  # fmt: skip
    assert after["spec"]["rules"][1] == before["spec"]["rules"][1]
    assert after["spec"]["parentRefs"] == before["spec"]["parentRefs"]
    assert after["spec"]["rules"][0]["timeouts"] == {"request": "0s"}
    green = {"group": "", "kind": "Service", "name": "llm-green", "port": 8000, "weight": 500}
    assert subject.backends(after) == [{**subject.backends(before)[0], "weight": 9500}, green]


@pytest.mark.parametrize(
    "other",
    [
        {"name": "llm-green", "port": 9000},
        {"name": "llm-green", "port": 8000, "namespace": "other"},
        {"name": "llm-green", "port": 8000, "group": "inference.networking.k8s.io", "kind": "InferencePool"},
    ],
    ids=["another port", "another namespace", "another kind"],
)
def test_a_backend_that_is_no_slot_is_no_state_of_ours_and_a_rollback_takes_its_traffic(subject, other):
    subject.router.write(split(500), None)
    subject.edit(lambda document: subject.backends(document).append({**other, "weight": 100}))
    with pytest.raises(RouterUnavailable, match="a backend that is no slot"):
        subject.router.read()
    subject.router.write(all_to("blue", owner="rollback", epoch=2), None)
    assert [backend["weight"] for backend in subject.backends(subject.document)] == [ALL, 0, 0]
    assert subject.router.read()[0].same_traffic(all_to("blue", owner="x", epoch=0))


def test_nothing_is_acknowledged_before_the_gateway_has_seen_this_generation(subject, gateway):
    until(lambda: subject.router.converged(subject.router.read()[1]) is True)
    gateway.idle = True
    revision = subject.router.write(split(500), None)
    assert subject.router.converged(revision) is False
    gateway.idle = False
    until(lambda: subject.router.converged(revision) is True)


def test_every_parent_that_the_route_names_must_acknowledge(subject, gateway):
    subject.edit(lambda document: document["spec"]["parentRefs"].append({"name": "internal"}))
    revision = subject.router.read()[1]
    until(lambda: subject.router.converged(revision) is True)
    gateway.idle = True
    public, internal = subject.document["status"]["parents"]
    behind = {**internal, "conditions": [{**one, "observedGeneration": 1} for one in internal["conditions"]]}
    left_over = {**behind, "parentRef": {"name": "not named any more"}}

    def converged(*parents: dict[str, Any]) -> bool | None:
        subject.api.write_status("httproutes", NAMESPACE, "llm", {"parents": list(parents)})
        return subject.router.converged(revision)

    assert converged() is False
    assert converged(public) is False
    assert converged(public, behind) is False
    assert converged(public, left_over, internal) is True
    subject.edit(lambda document: document["spec"].pop("parentRefs"))
    assert subject.router.converged(subject.router.read()[1]) is False, "nobody acts on it"


@pytest.mark.parametrize("condition", ["Accepted", "ResolvedRefs", "PartiallyInvalid"])
def test_a_gateway_that_does_not_take_the_route_refuses_it(subject, gateway, condition):
    status = "True" if condition == "PartiallyInvalid" else "False"
    gateway.condition = {"type": condition, "status": status, "reason": "UnsupportedValue", "message": "no such thing"}
    revision = subject.router.write(split(500), None)

    with pytest.raises(RouterRejected, match=f"{condition}: UnsupportedValue: no such thing"):
        until(lambda: subject.router.converged(revision) is not False)


def test_a_status_that_is_written_in_between_makes_no_conflict(subject):
    revision = subject.router.write(split(500), None)
    said = {"parents": []}
    subject.api.before_put.append(lambda: subject.api.write_status("httproutes", NAMESPACE, "llm", said))
    subject.router.write(split(2500), revision)
    assert subject.router.read()[0] == split(2500)
    assert subject.document["status"] == said


def endpoints(*ready: bool | None) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"namespace": NAMESPACE, "name": "s", "labels": {"kubernetes.io/service-name": "llm-green"}},
        "endpoints": [
            {"addresses": ["10.0.0.1"], "conditions": {} if one is None else {"ready": one}} for one in ready
        ],
    }


@pytest.mark.parametrize(("ready", "usable"), [((), False), ((False,), False), ((False, True), True), ((None,), True)])
def test_a_slot_is_usable_when_its_service_has_a_ready_endpoint(subject, ready, usable):
    subject.api.apply("endpointslices", endpoints(*ready))
    assert subject.router.usable("green") is usable
    assert subject.router.usable("blue") is False


def test_where_endpoints_may_not_be_read_nothing_is_known_of_a_slot(subject):
    subject.api.answer(403, times=1, to="endpointslices")
    assert subject.router.usable("green") is None


def test_a_rule_that_is_not_there_is_refused(subject):
    place = GATEWAY_PLACE.model_copy(update={"rule": 3})
    with pytest.raises(RouterRejected, match="no rule 3"):
        GatewayApiRouter(place).read()


@pytest.mark.parametrize("expects", [True, False])
def test_a_newer_owner_between_look_and_put_fences_the_older_one(subject, expects):
    revision = subject.router.write(split(500, epoch=7), None)
    newer = all_to("blue", owner="rollback", epoch=8)
    subject.api.before_put.append(lambda: subject.router.write(newer, None))
    with pytest.raises(Fenced, match="epoch 7 was superseded: rollback writes with 8"):
        subject.router.write(split(5000, epoch=7), revision if expects else None)
    assert subject.router.read()[0].same_traffic(newer)


def test_another_hand_between_look_and_put_is_a_conflict_for_a_step_and_none_for_a_rollback(subject):
    revision = subject.router.write(split(500), None)
    subject.api.before_put.append(subject.meddle)
    with pytest.raises(RouterConflict):
        subject.router.write(split(2500), revision)
    assert subject.router.read()[0].weights["green"] == 5000
    subject.api.before_put.append(lambda: subject.edit(lambda document: subject.backends(document)[0].pop("weight")))
    subject.router.write(all_to("blue", owner="rollback", epoch=2), None)
    assert subject.router.read()[0].weights["green"] == 0


@pytest.mark.parametrize("status", [0, 503], ids=["answer lost", "busy"])
def test_a_put_whose_answer_is_lost_is_one_write(subject, status):
    before = subject.document["metadata"]["generation"]
    subject.api.answer(status, times=1, to="PUT")
    revision = subject.router.write(split(500), None)
    assert subject.router.read() == (split(500), revision)
    assert subject.document["metadata"]["generation"] == before + 1


@pytest.mark.parametrize(
    ("status", "error"),
    [
        *((status, RouterUnavailable) for status in (401, 403, 429, 500, 503)),
        *((status, RouterRejected) for status in (400, 404, 422)),
    ],
)
@pytest.mark.parametrize("call", ["GET", "PUT"])
def test_errors_of_the_cluster_are_the_ports(subject, status, error, call):
    subject.api.answer(status, times=9, to=call)
    with pytest.raises(error) as raised:
        subject.router.write(split(500), None)
    assert raised.value.where.endswith("serving/llm")
    assert ("get and update" in raised.value.hint) == (status in (401, 403))


def test_a_cluster_that_cannot_be_reached_may_come_back(subject):
    subject.api.answer(0, times=9, to="GET")
    with pytest.raises(RouterUnavailable, match="does not answer"):
        subject.router.write(split(500), None)


@pytest.mark.parametrize("epoch", ["next", "-1", ""])
def test_annotations_that_are_not_ours_stop_a_step_but_no_rollback(subject, epoch):
    subject.edit(lambda document: document["metadata"].update(annotations={"llm-pipeline/epoch": epoch}))
    with pytest.raises(RouterUnavailable, match="annotations were not written by this package"):
        subject.router.read()
    subject.router.write(all_to("blue", owner="rollback", epoch=1), None)
    assert subject.router.read()[0] == subject.router.nearest(all_to("blue", owner="rollback", epoch=1))


def test_nobody_stands_by(subject):
    assert subject.router.nearest(all_to("blue", owner="t", epoch=1, standby="green")).standby is None


def test_traffic_to_nobody_is_no_state_of_ours(subject):
    subject.router.write(split(500), None)
    subject.edit(lambda document: [backend.update(weight=0) for backend in subject.backends(document)])
    with pytest.raises(RouterUnavailable, match="to no backend"):
        subject.router.read()


def test_without_a_way_to_the_cluster_the_error_says_how_to_get_one(cluster, monkeypatch):
    with pytest.raises(ConfigError, match="no way to the cluster"):
        GatewayApiRouter(GATEWAY_PLACE.model_copy(update={"context": "elsewhere"}))
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(Unsupported, match="Kubernetes client") as raised:
        GatewayApiRouter(GATEWAY_PLACE)
    assert "llm-pipeline[kubernetes]" in raised.value.hint


def matches_of(subject) -> list[dict[str, dict[str, str]]]:
    return subject.document["spec"]["rules"][0]["matches"]


def test_a_rule_that_matches_everything_is_limited_to_what_is_for_users_also_when_it_was_opened_since(subject):
    for _ in range(2):
        subject.router.write(split(500), None)
        exact = sorted(one["path"]["value"] for one in matches_of(subject) if one["path"]["type"] == "Exact")
        assert exact == ["/v1/chat/completions", "/v1/completions", "/v1/models"]
        subject.edit(lambda document: document["spec"]["rules"][0].pop("matches"))


def test_a_rule_that_says_what_it_matches_is_its_operators(subject):
    own = [{"path": {"type": "PathPrefix", "value": "/v2/models/llm"}}]
    subject.edit(lambda document: document["spec"]["rules"][0].update(matches=own))
    subject.router.write(split(500), None)
    assert matches_of(subject) == own
