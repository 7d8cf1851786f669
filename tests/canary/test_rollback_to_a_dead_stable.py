"""A rollback has a server that answers before any traffic moves, and never stops the last one that does."""

from __future__ import annotations

import pytest
from simulated import Killed, Site

from llm_pipeline.canary.moving import NoWayBack
from llm_pipeline.canary.record import Phase
from llm_pipeline.operations.rollback import ensure_rolled_back

pytestmark = pytest.mark.usefixtures("fast")


@pytest.fixture
def site(tmp_path) -> Site:
    place = Site(tmp_path)
    assert place.steps(20, 50) == ["GO", "GO"]
    place.sent = place.lost = 0
    return place


def roll_back(site: Site) -> None:
    ensure_rolled_back(site.place, "r1")


def is_back(site: Site) -> bool:
    return (site.record().phase, site.weights(), site.running) == (Phase.ROLLED_BACK, {"blue": 10_000}, {"blue"})


def test_a_dead_stable_is_started_before_traffic_goes_to_it(site) -> None:
    site.running.discard("blue")
    roll_back(site)
    assert is_back(site)
    assert site.effects.index("start blue") < site.effects.index("stop green")
    assert site.sent > 0
    assert site.lost == 0, "the candidate answered until stable did"


def test_the_last_server_that_answers_is_not_stopped_and_keeps_the_traffic(site) -> None:
    site.running.discard("blue")
    site.stable_starts = False
    with pytest.raises(NoWayBack, match="no GPU is free"):
        roll_back(site)
    assert (site.record().phase, site.running) == (Phase.ROLLING_BACK, {"green"})
    assert site.weights() == {"blue": 5_000, "green": 5_000}, "on trial, so the candidate answers for both"
    assert site.lost == 0
    site.stable_starts = True
    roll_back(site)
    assert is_back(site)
    assert site.lost == 0


def test_where_both_are_dead_stable_is_started_and_the_traffic_waits_for_it_if_it_does_not_start(site) -> None:
    site.running.clear()
    site.stable_starts = False
    with pytest.raises(NoWayBack):
        roll_back(site)
    assert (site.record().phase, site.weights()) == (Phase.ROLLING_BACK, {"blue": 10_000})
    site.stable_starts = True
    roll_back(site)
    assert is_back(site)


def test_a_stable_that_hangs_while_the_candidate_answers_is_started_anew(site) -> None:
    site.hung.add("blue")
    roll_back(site)
    assert is_back(site)
    assert site.effects[-20:].count("stop blue") == 1
    assert site.lost == 0


def test_where_neither_answers_stable_is_left_running_and_gets_the_traffic(site) -> None:
    site.hung |= {"blue", "green"}
    roll_back(site)
    assert is_back(site)
    assert "stop blue" not in site.effects, "a host that is busy for a while must not lose its production"


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.thorough)])
def test_killed_at_every_boundary_of_a_rollback_to_a_dead_stable_nothing_is_lost(tmp_path, site, every: int) -> None:
    start = site.boundary
    site.running.discard("blue")
    roll_back(site)
    for boundary in range(start + 1, site.boundary + 1, every):
        again = Site(tmp_path / str(boundary))
        again.steps(20, 50)
        again.running.discard("blue")
        again.sent = again.lost = 0
        again.die_at = again.boundary + boundary - start
        with pytest.raises(Killed):
            roll_back(again)
        roll_back(again.buried())
        assert is_back(again), again.effects
        assert again.lost == 0, again.effects
