"""Rolling back while the store accepts no writes: users are moved first, and it is recorded afterwards. In memory."""

from __future__ import annotations

import pytest
from test_guard import LATER, guard
from test_one_way_back import Served

from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.canary.moving import NoWayBack
from llm_pipeline.canary.record import Phase

pytestmark = pytest.mark.usefixtures("fast")


@pytest.fixture
def site(tmp_path) -> Served:
    """r1 is production, r0 stands by; from here on the store takes nothing."""
    found = Served(tmp_path)
    found.release("r1")
    found.store_takes = False
    found.sent = found.lost = 0
    return found


def left(site: Served, leaving: str = "") -> str:
    with pytest.raises(Transient) as refused:
        site.roll_back(leaving)
    return str(refused.value)


@pytest.mark.parametrize("leaving", ["", "r1"])
def test_users_leave_production_though_nothing_can_be_recorded(site, leaving: str) -> None:
    said = left(site, leaving)
    assert "all traffic is on r0 in blue" in said
    assert "run it again" in said
    assert "no space left" in said
    assert (site.weights(), site.router.state.standby) == ({"blue": 10_000}, None)
    assert site.running == {"blue", "green"}, "nothing is stopped that nobody wrote down"
    told = len(site.told)
    assert "all traffic is on r0 in blue" in left(site, leaving)
    assert (len(site.told), site.lost) == (told, 0), "asked again, nothing is moved"


def test_once_the_store_takes_it_whoever_asks_again_finishes_it(site) -> None:
    left(site)
    site.store_takes = True
    site.roll_back()
    assert (site.serving(), site.running, site.lost) == ("r0", {"blue"}, 0)
    assert site.record().phase is Phase.ROLLED_BACK
    site.roll_back()
    assert site.serving() == "r0"


def test_or_the_guard_does_and_until_then_leaves_the_traffic_there(site) -> None:
    left(site)
    for after in (0.0, LATER):
        guard(site, after)
        assert (site.weights(), site.router.state.standby) == ({"blue": 10_000}, None)
        assert site.running == {"blue", "green"}
    site.store_takes = True
    assert [action.what for action in guard(site, 2 * LATER)] == ["rolled back"]
    assert (site.serving(), site.running, site.lost) == ("r0", {"blue"}, 0)
    assert guard(site, 2 * LATER) == []
    site.roll_back()
    assert site.serving() == "r0"


def test_a_release_that_begins_in_between_moves_nobody(site) -> None:
    left(site)
    site.store_takes = True
    assert site.steps(50, release="r2") == ["INCONCLUSIVE"]
    assert (site.weights(), site.running) == ({"blue": 10_000}, {"blue", "green"})
    guard(site)
    assert site.pointers.production is not None
    assert (site.pointers.production.release_id, site.weights(), site.lost) == ("r0", {"blue": 10_000}, 0)


def test_a_version_before_that_has_ended_is_started_first(site) -> None:
    site.running.discard("blue")
    assert "all traffic is on r0 in blue" in left(site)
    assert (site.running, site.lost) == ({"blue", "green"}, 0)


def test_where_it_does_not_start_users_stay(site) -> None:
    site.running.discard("blue")
    site.stable_starts = False
    with pytest.raises(NoWayBack):
        site.roll_back()
    assert (site.weights(), site.lost) == ({"green": 10_000}, 0)


def test_where_something_else_is_in_its_slot_users_stay_and_a_person_is_told(site) -> None:
    site.serves["blue"] = site.repositories["r5"]
    assert "blue does not serve r0" in left(site)
    assert site.weights() == {"green": 10_000}


def test_a_store_that_cannot_even_be_read_moves_nobody_and_says_what_to_do(site, monkeypatch) -> None:
    def unread(name: str) -> None:
        raise Transient(f"cannot read {name}: input/output error")

    monkeypatch.setattr(site.store, "read_document", unread)
    said = left(site)
    assert "what served before is unknown" in said
    assert "input/output error" in said
    assert site.weights() == {"green": 10_000}


def test_without_a_version_before_that_is_said(site) -> None:
    site.store_takes = True
    site.roll_back()
    site.store_takes = False
    with pytest.raises(ConfigError, match="no previous release"):
        site.roll_back("r0")
    assert "nothing was moved" in left(site), "it serves because another one was taken back"
    assert site.weights() == {"blue": 10_000}


@pytest.mark.parametrize("leaving", ["", "r2"])
def test_a_canary_loses_its_traffic_by_name_too(site, leaving: str) -> None:
    site.store_takes = True
    assert site.steps(50, release="r2") == ["GO"]
    site.store_takes = False
    assert "r2" in left(site, leaving)
    assert (site.weights(), site.lost) == ({"green": 10_000}, 0)


def test_naming_production_while_a_canary_is_on_trial_moves_its_users_to_production_at_least(site) -> None:
    site.store_takes = True
    assert site.steps(50, release="r2") == ["GO"]
    site.store_takes = False
    left(site, "r1")
    assert (site.weights(), site.running) == ({"green": 10_000}, {"blue", "green"})
