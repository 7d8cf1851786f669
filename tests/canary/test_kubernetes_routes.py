"""A router in a cluster: fences, races, and an API server in trouble."""

from __future__ import annotations

import sys

import pytest
from custom_resources import CustomResources
from router_contract import GATEWAY_PLACE, KubernetesSubject, gateway_subject, split

from llm_pipeline.adapters.gateway_api.router import GatewayApiRouter
from llm_pipeline.base.errors import ConfigError, Fenced, Unsupported
from llm_pipeline.canary.router import RouterConflict, RouterRejected, RouterUnavailable, all_to


@pytest.fixture
def subject(cluster: CustomResources) -> KubernetesSubject:
    return gateway_subject(cluster)


def test_owner_and_epoch_are_annotations(subject):
    subject.router.write(split(500, epoch=3, owner="worker 7 of r1"), None)
    told = subject.document["metadata"]["annotations"]
    assert told.pop("llm-pipeline/written").isdecimal()
    assert told == {
        "llm-pipeline/owner": "worker 7 of r1", "llm-pipeline/epoch": "3", "llm-pipeline/candidate": "green",
    }  # fmt: skip


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
        (400, RouterRejected), (401, RouterUnavailable), (403, RouterUnavailable), (404, RouterRejected),
        (422, RouterRejected), (429, RouterUnavailable), (500, RouterUnavailable), (503, RouterUnavailable),
    ],
)  # fmt: skip
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
