"""The dead-man switch: canaries without a controller, pauses without an answer, slots that nobody needs."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from deployment_here import write_deployment
from place_here import serve
from simulated import CANDIDATE, MODEL, STABLE, Killed, Site, guard

from llm_pipeline.canary.people import answer, ask
from llm_pipeline.canary.record import Phase, lease_name
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.operations import guard as guard_module
from llm_pipeline.operations.guard import Guard, guard_once
from llm_pipeline.operations.rollback import ensure_rolled_back
from llm_pipeline.store.lease import Lease
from llm_pipeline.store.place_state import Pointer, StepApproval, read_place

pytestmark = pytest.mark.usefixtures("fast")

LATER = 400.0


@pytest.fixture
def site(tmp_path) -> Site:
    return Site(tmp_path)


def killed_at_20_percent(site: Site) -> None:
    site.policy |= {"minimum_bake_seconds": 60.0, "maximum_bake_seconds": 60.0}
    site.die_at = 40
    with pytest.raises(Killed):
        site.step(20)
    site.buried()
    assert (site.record().phase, site.weights()) == (Phase.BAKING, {"blue": 8_000, "green": 2_000})
    assert guard(site) == []


def paused_at_20_percent(site: Site) -> None:
    site.policy["approve_before_percent"] = [50]
    assert site.steps(20, 50) == ["GO", "INCONCLUSIVE"]


@pytest.mark.parametrize(("unwatched", "within", "beyond"), [(300.0, 200.0, LATER), (100.0, 90.0, 200.0)])
def test_a_canary_without_a_controller_is_rolled_back_once_it_was_silent_for_longer_than_the_policy_allows(
    site, unwatched: float, within: float, beyond: float
) -> None:
    site.policy["unwatched_seconds"] = unwatched
    killed_at_20_percent(site)
    assert guard(site, within) == []
    assert site.weights() == {"blue": 8_000, "green": 2_000}
    (action,) = guard(site, beyond)
    assert (action.what, action.release_id) == ("rolled back", "r1")
    assert "no controller heartbeat for" in action.detail
    assert (site.record().phase, site.weights(), site.running) == (Phase.ROLLED_BACK, {"blue": 10_000}, {"blue"})
    assert [event.by for event in site.record().events][-2:] == ["guard", "guard"]
    assert guard(site, 2 * beyond) == []


def test_the_lease_that_a_killed_controller_leaves_keeps_no_guard_away(site) -> None:
    killed_at_20_percent(site)
    with Lease(site.store, lease_name("cpu"), seconds=3600.0):  # long before it is renewed, or over
        assert guard(site, 1.0) == []
        assert [action.what for action in guard(site, LATER)] == ["rolled back"]
    assert site.weights() == {"blue": 10_000}


def test_a_canary_that_a_controller_drives_is_left_alone(site) -> None:
    killed_at_20_percent(site)
    with Lease(site.store, lease_name("cpu"), seconds=0.3):
        assert guard(site, LATER) == []
    assert site.record().phase is Phase.BAKING


def test_a_paused_canary_waits_until_its_deadline_and_is_rolled_back_then(site) -> None:
    site.policy["pause_deadline_seconds"] = 1000.0
    paused_at_20_percent(site)
    assert guard(site, 900.0) == []
    (action,) = guard(site, 1100.0)
    assert "nobody answered in time" in action.detail
    assert site.weights() == {"blue": 10_000}


def test_a_paused_canary_that_a_person_denied_is_rolled_back_at_once(site) -> None:
    paused_at_20_percent(site)
    answer(site.store, "r1", "cpu", 50, approved=False, by="alice")
    (action,) = guard(site)
    assert action.detail == "alice denied step 50 %"
    assert site.weights() == {"blue": 10_000}


@pytest.mark.parametrize(
    ("guarded_seconds_ago", "phase"),
    [
        (60.0, Phase.PAUSED),
        (-130.0, Phase.PAUSED),
        (1200.0, Phase.ROLLED_BACK),
        (-1200.0, Phase.ROLLED_BACK),
        (None, Phase.ROLLED_BACK),
    ],
)
def test_a_paused_canary_outlives_its_run_only_while_a_guard_looks(
    site, monkeypatch: pytest.MonkeyPatch, guarded_seconds_ago: float | None, phase: Phase
) -> None:
    paused_at_20_percent(site)
    if guarded_seconds_ago is not None:
        now = time.time()
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: now - guarded_seconds_ago)
            assert guard(site) == []
    ensure_rolled_back(site.place, "r1", leave_paused=True)  # as the last task of a release's run does
    assert site.record().phase is phase


def test_a_step_that_was_approved_but_never_begun_is_rolled_back_in_the_end(site) -> None:
    site.policy["approve_before_percent"] = [50]
    assert site.step(20).verdict == "GO"
    answer(site.store, "r1", "cpu", 50, approved=True, by="alice")
    assert guard(site) == []
    assert guard(site, 200.0) == []
    assert guard(site, LATER)[0].what == "rolled back"


def test_the_next_step_may_wait_for_a_person_though_a_later_one_was_answered_ahead(site) -> None:
    site.policy["approve_before_percent"] = [50, 100]
    assert site.step(20).verdict == "GO"
    asked = StepApproval(release_id="r1", run="run", percent=50, question="begin", asked_at=time.time())
    ask(site.store, "cpu", asked.model_copy(update={"deadline_seconds": 10 * LATER}))
    answer(site.store, "r1", "cpu", 100, approved=True, by="alice")
    assert guard(site) == []
    assert guard(site, LATER) == []


def test_the_guard_of_another_host_moves_nothing_and_leaves_no_sign(site) -> None:
    killed_at_20_percent(site)
    elsewhere = Guard(replace(site.place, router=None))
    before = read_place(site.store, "cpu")
    assert elsewhere.guard(time.time() + LATER) == []
    assert (read_place(site.store, "cpu"), site.record().phase) == (before, Phase.BAKING)


def promoted(site: Site, hours_ago: float) -> None:
    at = datetime.now(UTC) - timedelta(hours=hours_ago)
    old = Pointer(release_id="r0", repository=STABLE, slot="blue", recipe="none", promoted_at=at)
    new = Pointer(release_id="r1", repository=CANDIDATE, slot="green", recipe="none", promoted_at=at)
    serve(site.store, MODEL, "cpu", new, previous=old, keep_until=at + timedelta(hours=2))


def test_the_version_before_stays_warm_for_its_window_and_is_stopped_then(site) -> None:
    site.policy["rollback_window_hours"] = 2.0
    assert site.steps(20, 50, 100) == ["GO"] * 3
    promoted(site, hours_ago=1.0)
    assert [action.what for action in guard(site)] == ["settled"], "its settlement ended before its traffic had moved"
    assert site.weights() == {"green": 10_000}
    assert guard(site) == []
    assert site.running == {"blue", "green"}
    (action,) = guard(site, 3700.0)
    assert (action.what, action.release_id, site.running) == ("stopped previous", "r0", {"green"})
    assert guard(site, 7200.0) == []


@pytest.mark.parametrize(
    ("clock_is_off", "driven"), [(-130.0, False), (130.0, False), (-4000.0, False), (4000.0, True), (-4000.0, True)]
)
def test_a_guard_with_a_wrong_clock_leaves_a_healthy_canary_alone(site, clock_is_off: float, driven: bool) -> None:
    assert site.step(20).verdict == "GO"
    renewing = Lease(site.store, lease_name("cpu"), seconds=0.3)
    with renewing if driven else contextlib.nullcontext():
        for seconds, off in ((0.0, 0.0), (60.0, clock_is_off), (120.0, clock_is_off)):  # it is set between two passes
            assert guard(site, seconds, off) == []
    assert site.weights() == {"blue": 8_000, "green": 2_000}


def test_each_sign_of_life_starts_the_wait_anew(site, monkeypatch) -> None:
    assert site.steps(20) == ["GO"]
    assert guard(site, 250.0) == []
    now = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now() + 250.0)
        assert site.steps(50) == ["GO"]
    assert guard(site, 500.0) == []
    assert guard(site, 600.0)[0].what == "rolled back"


def test_what_a_full_store_does_not_take_is_told_and_done_once_it_has_room(site) -> None:
    killed_at_20_percent(site)
    site.store_takes = False
    for _ in range(2):
        (action,) = guard(site, LATER)
        assert (action.what, site.weights()) == ("failed", {"blue": 8_000, "green": 2_000})
        assert "no space left on device" in action.detail
    site.store_takes = True
    (action,) = guard(site, LATER)
    assert (action.what, site.record().phase, site.running) == ("rolled back", Phase.ROLLED_BACK, {"blue"})


@pytest.mark.parametrize("reach", [killed_at_20_percent, paused_at_20_percent])
@pytest.mark.parametrize("ended", [{"green"}, {"blue", "green"}], ids=["the candidate", "both"])
def test_servers_that_ended_while_nobody_drives_are_not_waited_for_and_stable_is_started(site, reach, ended) -> None:
    reach(site)
    site.running -= ended
    (action,) = guard(site, 10.0)
    assert (action.what, site.weights(), site.running) == ("rolled back", {"blue": 10_000}, {"blue"})
    assert "server ended" in action.detail


def test_a_rollback_that_could_not_be_finished_is_gone_on_with(site) -> None:
    killed_at_20_percent(site)
    site.running.discard("blue")
    site.stable_starts = False
    assert guard(site, LATER)[0].what == "failed"
    assert (site.record().phase, site.running) == (Phase.ROLLING_BACK, {"green"})
    site.stable_starts = True
    assert [action.what for action in guard(site, LATER + 1)] == ["rolled back"]
    assert (site.weights(), site.running) == ({"blue": 10_000}, {"blue"})


def _raise(*_: object, **__: object) -> None:
    raise ZeroDivisionError("a fault")


@pytest.mark.parametrize("place", ["edit_place", "keep", "carry_on"])
def test_a_fault_at_one_thing_is_told_and_the_guard_goes_on(site, monkeypatch, caplog, place) -> None:
    monkeypatch.setattr(f"llm_pipeline.operations.guard.{place}", _raise)
    (action,) = guard(site)
    assert (action.gpu_target, action.what) == ("cpu", "failed")
    assert "ZeroDivisionError: a fault" in action.detail
    assert caplog.records[-1].exc_info


def test_a_fault_before_a_target_is_looked_at_leaves_the_others_guarded(site, tmp_path, monkeypatch) -> None:
    real, guarded = guard_module.place_as_it_is, []
    failures = iter([True, False])
    monkeypatch.setattr(guard_module, "place_as_it_is", lambda *found: _raise() if next(failures) else real(*found))
    monkeypatch.setattr(Guard, "guard", lambda self, *_: guarded.append(self.place.target) or [])
    written = write_deployment(tmp_path, 18541, ("cpu-a", "cpu-b"))
    actions = guard_once(site.store, load_yaml(written, Deployment))
    assert [action.what for action in actions] == ["failed"]
    assert guarded == ["cpu-b"]


def test_a_place_whose_document_is_damaged_is_told_once(site, tmp_path) -> None:
    killed_at_20_percent(site)
    (document,) = tmp_path.rglob("places/cpu.json")
    document.write_bytes(document.read_bytes().replace(b'"', b"\x01", 1))
    (action,) = guard(site, LATER)
    assert (action.what, action.release_id) == ("failed", "-")
    assert "restore it from a backup" in action.detail
