"""Istio's router against the double of an API server; no proxy of Istio's runs here."""

from __future__ import annotations

import copy

import pytest
from custom_resources import CustomResources
from router_contract import ISTIO_PLACE, NAMESPACE, VIRTUAL_SERVICE, KubernetesSubject, istio_subject, split

from llm_pipeline.adapters.istio.adapter import Destination
from llm_pipeline.adapters.istio.router import IstioRouter
from llm_pipeline.base.errors import Unsupported
from llm_pipeline.canary.open_router import open_router, router_as_it_is
from llm_pipeline.canary.router import RouterRejected, RouterUnavailable, all_to


@pytest.fixture
def subject(cluster: CustomResources) -> KubernetesSubject:
    return istio_subject(cluster)


@pytest.mark.parametrize(("green", "percent"), [(100, 1), (1234, 12), (3350, 34), (9900, 99), (10_000, 100), (0, 0)])
def test_weights_are_whole_percents_and_sum_to_a_hundred(subject, green, percent):
    subject.router.write(split(green), None)
    assert [one["weight"] for one in subject.backends(subject.document)] == [100 - percent, percent]
    assert subject.router.read()[0].weights["green"] == 100 * percent


@pytest.mark.parametrize("green", [20, 50, 9960])
def test_a_share_below_one_percent_is_refused_and_not_rounded_away(subject, green):
    with pytest.raises(Unsupported, match="splits by 1 % at least"):
        subject.router.nearest(split(green))
    with pytest.raises(RouterRejected, match="splits by 1 % at least"):
        subject.router.write(split(green), None)
    assert subject.api.calls[-1:] != ["PUT virtualservices"]


def test_whatever_else_is_in_the_virtual_service_stays(subject):
    wide = copy.deepcopy(VIRTUAL_SERVICE)
    wide["spec"]["http"][0]["retries"] = {"attempts": 2, "retryOn": "connect-failure"}
    wide["spec"]["http"].append({"name": "health", "route": [{"destination": {"host": "other"}}]})
    wide["spec"]["http"][0]["route"][0]["headers"] = {"response": {"set": {"x-slot": "blue"}}}
    subject.api.apply("virtualservices", wide)
    IstioRouter(ISTIO_PLACE.model_copy(update={"route": "all"})).write(split(500), None)
    blue, green = subject.backends(subject.document)
    assert blue == {**wide["spec"]["http"][0]["route"][0], "weight": 95}
    assert green == {"destination": {"host": "llm", "subset": "green"}, "weight": 5}
    assert subject.document["spec"]["http"][0]["retries"] == wide["spec"]["http"][0]["retries"]
    assert subject.document["spec"]["http"][1] == wide["spec"]["http"][1]


def test_destinations_are_told_apart_by_host_subset_and_port(subject):
    hosts = {slot: Destination(host=f"llm-{slot}", port=8000) for slot in ("blue", "green")}
    router = IstioRouter(ISTIO_PLACE.model_copy(update={"backends": ISTIO_PLACE.backends.model_copy(update=hosts)}))
    with pytest.raises(RouterUnavailable, match="a backend that is no slot"):
        router.read()
    router.write(split(500), None)
    assert subject.backends(subject.document) == [
        {"destination": {"host": "llm", "subset": "blue"}, "weight": 0},
        {"destination": {"host": "llm-blue", "port": {"number": 8000}}, "weight": 95},
        {"destination": {"host": "llm-green", "port": {"number": 8000}}, "weight": 5},
    ]
    assert router.read()[0] == split(500)


def test_without_a_name_there_must_be_one_route(subject):
    two = copy.deepcopy(VIRTUAL_SERVICE)
    two["spec"]["http"].append({"name": "health", "route": []})
    subject.api.apply("virtualservices", two)
    with pytest.raises(RouterRejected, match="2 HTTP routes, not one"):
        subject.router.read()
    with pytest.raises(RouterRejected, match="0 HTTP routes of the name llm"):
        IstioRouter(ISTIO_PLACE.model_copy(update={"route": "llm"})).read()


def test_what_was_changed_after_the_write_has_not_converged(subject):
    revision = subject.router.write(split(500), None)
    assert subject.router.converged(revision) is True
    subject.meddle()
    assert subject.router.converged(revision) is False
    subject.api.answer(503, times=9)
    assert subject.router.converged(revision) is None


def test_nothing_is_known_of_the_slots(subject):
    assert (subject.router.usable("green"), subject.router.active_requests("green")) == (None, None)


def test_it_is_the_router_of_its_kind_of_place(subject, tmp_path):
    initial = all_to("blue", owner="t", epoch=0)
    subject.api.calls.clear()
    assert isinstance(open_router(ISTIO_PLACE, {}, tmp_path, initial=initial), IstioRouter)
    assert isinstance(router_as_it_is(ISTIO_PLACE, {}, tmp_path), IstioRouter)
    assert subject.api.calls == []
    assert subject.document["metadata"]["namespace"] == NAMESPACE
