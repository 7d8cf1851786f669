"""What every router does alike: Envoy, which is real, and the Gateway API, whose API server and gateway are doubles."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from custom_resources import CustomResources
from gateway_controller import GatewayController
from router_contract import NAMESPACE, EnvoySubject, Subject, gateway_subject, split
from waiting import until

from llm_pipeline.base.errors import Fenced
from llm_pipeline.canary.router import RouterConflict, RouterUnavailable, all_to


@pytest.fixture(scope="module")
def api(double_cluster: CustomResources) -> Iterator[CustomResources]:
    """A cluster whose gateway acknowledges every route."""
    controller = GatewayController(double_cluster, NAMESPACE, "llm", ("llm-blue", "llm-green"))
    yield double_cluster
    controller.stop()


@pytest.fixture(params=["envoy", "gateway_api"])
def subject(request: pytest.FixtureRequest) -> Subject:
    if request.param == "envoy":
        return EnvoySubject(request.getfixturevalue("quiet_site").router)
    return gateway_subject(request.getfixturevalue("api"))


def test_what_nobody_of_ours_wrote_is_read_with_epoch_zero(subject):
    state, _ = subject.router.read()
    assert state.same_traffic(all_to("blue", owner="x", epoch=0))
    assert state.epoch == 0


@pytest.mark.parametrize("green", [0, 100, 2500, 3333, 9996, 10_000])
def test_what_is_written_is_read_and_takes_effect(subject, green):
    assert subject.router.nearest(split(green)) == split(green)
    revision = subject.router.write(split(green), None)
    assert subject.router.read() == (split(green), revision)
    until(lambda: subject.router.converged(revision) is True)


@pytest.mark.parametrize("want", [split(500), all_to("blue", owner="t", epoch=1)], ids=["split", "all"])
def test_the_same_write_twice_is_one_revision(subject, want):
    first = subject.router.write(want, None)
    assert subject.router.write(want, None) == first
    assert subject.router.write(want, first) == first


def test_the_same_split_by_a_new_owner_is_another_revision(subject):
    first = subject.router.write(split(500, epoch=1), None)
    second = subject.router.write(split(500, epoch=2, owner="u"), first)
    assert second != first
    assert subject.router.read() == (split(500, epoch=2, owner="u"), second)
    until(lambda: subject.router.converged(second) is True)


def test_an_old_epoch_is_fenced(subject):
    subject.router.write(split(500, epoch=7), None)
    for expect in (None, subject.router.read()[1]):
        with pytest.raises(Fenced, match="epoch 6 was superseded"):
            subject.router.write(split(5000, epoch=6), expect)
    assert subject.router.read()[0] == split(500, epoch=7)


def test_a_write_over_a_changed_revision_is_a_conflict(subject):
    _, old = subject.router.read()
    subject.router.write(split(500), None)
    with pytest.raises(RouterConflict):
        subject.router.write(split(2500), old)
    assert subject.router.read()[0] == split(500)


def test_a_revision_that_was_replaced_has_not_converged(subject):
    old = subject.router.write(split(500), None)
    new = subject.router.write(split(2500), old)
    until(lambda: subject.router.converged(new) is True)
    assert subject.router.converged(old) is False


def test_a_change_by_another_hand_is_seen_and_does_not_stop_a_rollback(subject):
    subject.router.write(split(500), None)
    subject.meddle()
    state, _ = subject.router.read()
    assert state.weights == {"blue": 5000, "green": 5000}
    assert not state.same_traffic(split(500))
    revision = subject.router.write(all_to("blue", owner="rollback", epoch=2), None)
    assert subject.router.read()[0].same_traffic(all_to("blue", owner="x", epoch=0))
    until(lambda: subject.router.converged(revision) is True)


def test_a_router_that_is_away_may_come_back(subject):
    router = subject.away()
    with pytest.raises(RouterUnavailable):
        router.read()
    with pytest.raises(RouterUnavailable):
        router.write(split(500), "what it was at")


def test_a_router_that_runs_needs_no_reviving(subject):
    assert subject.router.revive() is None
