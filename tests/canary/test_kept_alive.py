"""What is meant to serve is started as soon as it has ended, whoever owns the place. The site is in memory."""

from __future__ import annotations

import pytest
from simulated import Site
from test_guard import guard
from test_one_way_back import Served

from llm_pipeline.base.errors import Fenced
from llm_pipeline.canary.record import Phase, lease_name
from llm_pipeline.canary.router import RouteState
from llm_pipeline.operations.rollback import force
from llm_pipeline.operations.switching import start
from llm_pipeline.store.lease import Lease

pytestmark = pytest.mark.usefixtures("fast")


@pytest.fixture
def site(tmp_path) -> Site:
    found = Site(tmp_path)
    found.policy |= {"minimum_bake_seconds": 60.0, "maximum_bake_seconds": 60.0}
    return found


def test_a_stable_that_is_killed_in_a_bake_is_started_at_the_next_look_and_a_failing_candidate_ends_then(site) -> None:
    seen = []

    def fails() -> None:
        seen.append(site.running.copy())
        site.faulty = True

    site.at_looks({3: lambda: site.running.discard("blue"), 5: fails})
    judgement = site.step(20)
    assert seen == [{"blue", "green"}]
    assert (judgement.verdict, site.record().phase) == ("NO_GO", Phase.ROLLED_BACK)
    assert site.record().watched_seconds < 30
    assert (site.weights(), site.running, site.lost) == ({"blue": 10_000}, {"blue"}, 0)


def test_a_candidate_that_fails_beside_a_stable_that_had_failed_is_rolled_back_as_soon_as_stable_answers(site) -> None:
    site.stable_starts = False

    def starts() -> None:
        site.stable_starts = True

    def fails() -> None:
        site.faulty = True

    site.at_looks({3: lambda: site.running.discard("blue"), 20: fails, 40: starts})
    judgement = site.step(20)
    assert (judgement.verdict, site.record().phase) == ("NO_GO", Phase.ROLLED_BACK)
    assert "stable answers again" in judgement.summary
    assert site.record().watched_seconds < 30


def test_a_power_cut_does_not_count_against_the_candidate(site) -> None:
    site.at_looks({3: site.running.clear})
    judgement = site.step(20)
    assert (judgement.verdict, site.record().phase, site.running) == ("INCONCLUSIVE", Phase.ROLLED_BACK, {"blue"})
    assert "had both ended" in judgement.summary


def test_the_guard_starts_a_production_that_was_killed_in_mid_canary_beside_whoever_drives_it(tmp_path) -> None:
    site = Served(tmp_path)
    assert site.steps(50, release="r1") == ["GO"]
    with Lease(site.store, lease_name("cpu")):
        site.running.discard("blue")
        assert [action.what for action in guard(site)] == ["started"]
    assert site.running == {"blue", "green"}


def test_the_guard_starts_production_though_the_store_takes_nothing(tmp_path) -> None:
    site = Served(tmp_path)
    site.store_takes = False
    site.running.discard("blue")
    assert "started" in [action.what for action in guard(site)]
    assert site.running == {"blue"}


def test_the_guard_starts_a_dead_standby(tmp_path) -> None:
    site = Served(tmp_path)
    site.release("r1")
    site.running.discard("blue")
    (action,) = guard(site)
    assert (action.what, action.release_id, site.running) == ("started", "r0", {"blue", "green"})
    assert site.router.state.standby == "blue"


class TestForcedRollback:
    @pytest.fixture
    def site(self, tmp_path) -> Served:
        """r1 serves in green, r0 is warm in blue."""
        found = Served(tmp_path)
        found.release("r1")
        found.sent = found.lost = 0
        return found

    def full(self, site: Served) -> str:
        site.store_takes = False
        return force(site.place, by="anna")

    def test_users_leave_production_and_nothing_is_stopped(self, site) -> None:
        assert self.full(site) == "all traffic is on blue"
        assert (site.weights(), site.router.state.owner) == ({"blue": 10_000}, "forced rollback by anna")
        assert site.running == {"blue", "green"}
        assert "already" in force(site.place, by="anna")
        guard(site)
        assert (site.weights(), site.lost) == ({"blue": 10_000}, 0)
        site.store_takes = True
        site.roll_back()
        assert (site.serving(), site.running, site.lost) == ("r0", {"blue"}, 0)

    def test_a_canary_loses_its_traffic_and_is_ended_by_whoever_asks_again(self, site) -> None:
        assert site.steps(50, release="r2") == ["GO"]
        assert self.full(site) == "all traffic is on green"
        assert site.weights() == {"green": 10_000}
        site.store_takes = True
        site.roll_back()
        assert (site.serving(), site.record("r2").phase) == ("r1", Phase.ROLLED_BACK)

    def test_a_candidate_that_only_stands_by_does_not_become_production(self, site) -> None:
        site.policy |= {"minimum_requests": 10_000, "maximum_bake_seconds": 60.0}
        seen: list[RouteState] = []
        baseline = site.traffic.baseline

        def asked(*arguments):
            if site.router.state.standby == "blue" and not seen:
                site.store_takes = False
                force(site.place, by="anna")
                seen.append(site.router.state)
                site.store_takes = True
            return baseline(*arguments)

        site.traffic.baseline = asked  # type: ignore[method-assign]
        with pytest.raises(Fenced):
            site.step(50, release="r2")
        assert [(state.weights, state.standby) for state in seen] == [({"green": 10_000}, None)]

    def test_a_version_before_that_has_ended_is_started_first(self, site) -> None:
        site.running.discard("blue")
        assert self.full(site) == "all traffic is on blue"
        assert (site.running, site.lost) == ({"blue", "green"}, 0)


def test_start_after_a_power_cut_ends_the_canary_that_nobody_drives(tmp_path) -> None:
    site = Served(tmp_path)
    assert site.steps(50, release="r1") == ["GO"]
    site.running.clear()
    serving = start(site.place, lambda _: site.router)
    record = site.record("r1")
    assert (serving.pointer.release_id, record.phase, site.running) == ("r0", Phase.ROLLED_BACK, {"blue"})
    assert record.judgement is not None
    assert (record.judgement.verdict, "had both ended" in record.judgement.summary) == ("INCONCLUSIVE", True)
    assert site.serving() == "r0"
