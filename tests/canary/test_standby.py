"""The version before production answers where production does not, and nothing else does. The site is in memory."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from simulated import Killed
from test_guard import guard
from test_one_way_back import Served

from llm_pipeline.canary.moving import NoWayBack
from llm_pipeline.canary.router import RouteState, all_to
from llm_pipeline.operations.rollback import ensure_rolled_back
from llm_pipeline.operations.status import disagreements

pytestmark = pytest.mark.usefixtures("fast")

DAY = 24 * 3600.0


@pytest.fixture
def site(tmp_path) -> Served:
    return Served(tmp_path)


@pytest.mark.parametrize("standby", ["blue", "green"])
def test_a_slot_with_traffic_of_its_own_stands_by_nobody(standby) -> None:
    split = {"weights": {"blue": 5_000, "green": 5_000}, "owner": "t", "epoch": 1, "standby": standby}
    for candidate in (None, "green"):
        with pytest.raises(ValidationError, match="cannot stand by"):
            RouteState.model_validate({**split, "candidate": candidate})
    with pytest.raises(ValidationError, match="cannot stand by"):
        all_to("blue", owner="t", epoch=1, standby="blue")


def test_no_candidate_is_started_in_a_slot_that_stands_by(site) -> None:
    site.release("r1")
    stood_by, replace = [], site.slots.replace

    def watched(slot, repository, token) -> None:
        stood_by.append(site.router.state.standby)
        replace(slot, repository, token)

    site.slots.replace = watched
    assert site.steps(50, release="r2") == ["GO"]
    assert stood_by == [None]
    mine = [told.standby for told in site.told if told.owner.startswith("r2@")]
    assert mine == [None, None], "it stands down, then the candidate shares"


def test_it_answers_on_where_a_canary_ends_before_its_candidate_is_started(site, monkeypatch) -> None:
    site.release("r1")

    def dies(*_: object, **__: object) -> None:
        raise Killed

    monkeypatch.setattr("llm_pipeline.canary.controller.stand_down", dies)
    with pytest.raises(Killed):
        site.step(50, release="r2")
    site.buried().running.discard("green")
    site.sent, site.lost, site.stable_starts = 0, 0, False
    with pytest.raises(NoWayBack):
        ensure_rolled_back(site.place, "r2")
    assert (site.router.state.standby, site.lost) == ("blue", 0)


def test_production_that_was_left_stands_by_for_nobody(site) -> None:
    site.release("r1")
    site.roll_back()
    assert (site.serving(), site.router.state.standby) == ("r0", None)
    assert guard(site) == []
    assert site.router.state.standby is None


def test_before_its_server_is_stopped_it_stands_down(site) -> None:
    site.release("r1")
    assert [action.what for action in guard(site, after=2 * DAY)] == ["stopped previous"]
    assert (site.router.state.standby, site.running) == (None, {"green"})
    assert guard(site, after=2 * DAY) == []
    assert site.router.state.standby is None


def test_what_stands_by_and_never_served_is_a_disagreement(site) -> None:
    site.release("r1")
    served = {"green": site.serves["green"].digest, "blue": "f" * 64}
    (problem,) = disagreements(site.pointers, site.record("r1"), site.router.state, served)
    assert "serves no previous version" in problem
