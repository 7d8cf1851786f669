"""The version before production answers where production does not, and nothing else does. The site is in memory."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from test_guard import guard
from test_one_way_back import Served

from llm_pipeline.canary.router import RouteState, all_to
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
    assert mine == ["blue", None, None], "claimed as they were, then it stands down, then the candidate shares"


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
