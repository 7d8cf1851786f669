"""A controller that is killed, frozen or refused at every boundary there is: each document, route and slot it touches.

Boundaries, and writes, are counted in a run that nothing disturbs, so a new one is covered by itself.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from simulated import CANDIDATE, Killed, Site

from llm_pipeline.base.errors import Fenced, IntegrityError, Transient
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.people import answer
from llm_pipeline.canary.record import CanaryJournal, Phase, take_over
from llm_pipeline.operations.rollback import ensure_rolled_back
from llm_pipeline.serving.slot_fence import FencingToken, admit, newest_token
from llm_pipeline.store.artifact_store import Conflict
from llm_pipeline.store.lease import LeaseHeld, LeaseLost

pytestmark = pytest.mark.usefixtures("fast")


Act = Callable[[Site], object]
EVERY = pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.thorough)])


def killed_everywhere(root: Path, act: Act, every: int, **settings: Any) -> Iterator[Site]:
    """The site after a controller was killed at each boundary of `act`, or every so many, one site a boundary."""
    dry = Site(root / "dry", **settings)
    act(dry)
    assert dry.boundary > 20
    for boundary in range(1, dry.boundary + 1, every):
        site = Site(root / str(boundary), die_at=boundary, **settings)
        try:
            act(site)
        except Killed:
            yield site.buried()


def promote(site: Site) -> list[str]:
    return site.steps(20, 50, 100)


def moments(site: Site) -> list[str]:
    told = [event.summary for event in site.record().events if event.kind in ("started", "shifted", "promoted")]
    return [summary.partition(":")[0] for summary in told]


@EVERY
def test_killed_at_every_boundary_of_a_good_canary_the_next_controller_promotes_it(tmp_path, every: int) -> None:
    count = 0
    for site in killed_everywhere(tmp_path, promote, every):
        count += 1
        assert promote(site)[-1] == "GO", site.effects
        record = site.record()
        assert (record.phase, record.attempt) == (Phase.PROMOTED, 1), site.effects
        assert site.weights() == {"green": 9_800, "blue": 200}, site.effects
        moved = [f"{percent} % of the traffic to green" for percent in (20, 50, 100)]
        assert moments(site) == ["candidate started in green", *moved, "no regression at 98 %"], site.effects
        assert [event.number for event in record.events] == list(range(1, len(record.events) + 1))
        assert site.kinds().count("promoted") == 1
        shares = [state.weights.get("green", 0) for state in site.told]
        assert shares == sorted(shares), "traffic never goes back on its way up"
    assert count > 50 / every


@EVERY
def test_killed_at_every_boundary_of_a_failing_canary_all_traffic_ends_on_stable(tmp_path, every: int) -> None:
    for site in killed_everywhere(tmp_path, promote, every, faulty=True):
        assert promote(site) == ["NO_GO"], site.effects
        assert (site.record().phase, site.weights()) == (Phase.ROLLED_BACK, {"blue": 10_000}), site.effects
        assert site.running == {"blue"}
        assert site.kinds().count("rolled back") == 1


@EVERY
def test_killed_at_every_boundary_around_an_approval_nothing_is_asked_twice_or_begun_without_it(
    tmp_path, every: int
) -> None:
    policy = {**Site(tmp_path / "policy").policy, "approve_before_percent": [100], "steps_percent": [20, 100]}

    def ask_and_go_on(site: Site) -> None:
        assert site.steps(20, 100) == ["GO", "INCONCLUSIVE"]
        answer(site.store, "r1", "cpu", 100, approved=True, by="alice")
        assert site.steps(100) == ["GO"]

    for site in killed_everywhere(tmp_path, ask_and_go_on, every, policy=policy):
        seen = [state.weights.get("green", 0) for state in site.told]
        if site.steps(20, 100)[-1] != "GO":
            assert max(seen, default=0) <= 2_000, site.effects
            answer(site.store, "r1", "cpu", 100, approved=True, by="alice")
        assert site.steps(100) == ["GO"], site.effects
        assert site.record().phase is Phase.PROMOTED
        assert site.kinds().count("approval asked") == 1


@EVERY
def test_an_older_release_killed_at_any_boundary_is_rolled_back_before_the_newer_one_begins(
    tmp_path, every: int
) -> None:
    for site in killed_everywhere(tmp_path, lambda site: site.steps(20, 50), every):
        before = len(site.told)
        assert site.steps(20, release="r2", run="newer") == ["GO"], site.effects
        assert site.record("r2").passed_percent == 20.0
        shares = [state.weights.get("green", 0) for state in site.told[before:]]
        assert (shares[-1], any(shares[:-1])) == (2_000, False), site.effects
        older = CanaryJournal(site.store, "r1", "cpu").load()
        assert older is None or older.phase is Phase.ROLLED_BACK


def test_a_first_deployment_whose_routes_the_router_does_not_take_is_not_promoted(tmp_path, monkeypatch) -> None:
    site = Site(tmp_path, first=None, running=set(), serves={})
    with monkeypatch.context() as deaf:
        deaf.setattr(site.router, "converged", lambda _: False)
        assert site.steps(20) == ["INCONCLUSIVE"]
    assert (site.record().phase, site.running) == (Phase.ROLLED_BACK, set())
    assert site.steps(20, run="next run") == ["GO"]
    assert (site.record().phase, site.weights()) == (Phase.PROMOTED, {"blue": 10_000})


def refusing(site: Site, first: int, count: int) -> list[str]:
    """From now on the store refuses so many writes, from the first of them on; returns a list of all to come."""
    write, names = site.store.write_document, list[str]()

    def counted(name: str, *arguments: Any) -> str:
        names.append(name)
        if first <= len(names) < first + count:
            raise Transient(f"cannot write {name}: no space left on device")
        return write(name, *arguments)

    site.store.write_document = counted  # type: ignore[method-assign]
    return names


def tried_again(site: Site) -> list[str]:
    """As Airflow does: a stage that failed for a reason that passes runs again."""
    for _ in range(10):
        try:
            take_over(site.store, "cpu")  # the lease that could not be given back has expired by then
            return promote(site)
        except Transient as error:
            if "leases/canary" not in str(error) and site.weights() != {"blue": 10_000}:
                raise  # a controller that has begun holds on to it
    raise AssertionError("it never came to an end")


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("faulty", [False, True])
def test_writes_that_are_refused_anywhere_end_no_good_canary_and_save_no_bad_one(
    tmp_path: Path, every: int, count: int, faulty: bool
) -> None:
    dry = Site(tmp_path / "dry", faulty=faulty)
    writes = refusing(dry, 1, 0)
    promote(dry)
    assert len(writes) > 10
    for first in range(1, len(writes) + 1, every):
        site = Site(tmp_path / str(first), faulty=faulty)
        refusing(site, first, count)
        verdict = tried_again(site)[-1]
        shares = [state.weights.get("green", 0) for state in site.told]
        if faulty:
            assert (site.record().phase, site.weights()) == (Phase.ROLLED_BACK, {"blue": 10_000}), site.effects
            assert (verdict, site.running, site.lost) == ("NO_GO", {"blue"}, 0), site.effects
        else:
            assert (verdict, site.record().phase) == ("GO", Phase.PROMOTED), site.effects
            assert (site.weights(), shares) == ({"green": 9_800, "blue": 200}, sorted(shares)), site.effects


def test_a_candidate_that_fails_while_the_store_is_full_is_rolled_back_for_that_once_it_has_room(tmp_path) -> None:
    site = Site(tmp_path)
    site.policy["minimum_bake_seconds"] = site.policy["maximum_bake_seconds"] = 60.0

    fails = {3: {"store_takes": False}, 5: {"faulty": True}, 10: {"store_takes": True}}
    site.at_looks({look: partial(vars(site).update, change) for look, change in fails.items()})
    judgement = site.step(20)
    assert judgement.verdict == "NO_GO"
    assert "fails request after request" in judgement.summary
    assert (site.weights(), site.record().phase, site.running) == ({"blue": 10_000}, Phase.ROLLED_BACK, {"blue"})
    assert [told.weights for told in site.told][-1] == {"blue": 10_000}


NEWER = ArtifactRef(kind="model_repository", digest="c" * 64)
PROMOTED = {"green": 9_800, "blue": 200}
"""Until it is settled, stable keeps a small share."""


def promote_newer(site: Site, repository: ArtifactRef) -> None:
    """A newer release goes all the way, as the lease of whoever was frozen has expired."""
    site.faulty, site.repositories["r2"] = False, repository
    take_over(site.store, "cpu")
    assert site.steps(20, 50, 100, release="r2") == ["GO"] * 3


@pytest.mark.parametrize("repository", [NEWER, CANDIDATE], ids=["another repository", "the same repository"])
def test_a_controller_that_wakes_in_its_drain_leaves_the_newer_releases_server_alone(
    tmp_path: Path, repository
) -> None:
    site = Site(tmp_path, faulty=True)
    site.in_drain = lambda: promote_newer(site, repository)
    with pytest.raises(Fenced):
        site.step(20)
    assert site.running == {"blue", "green"}
    assert (site.serves["green"], site.weights()) == (repository, PROMOTED)
    assert (site.record("r1").phase, site.record("r2").phase) == (Phase.ROLLED_BACK, Phase.PROMOTED)


def test_a_rollback_stops_the_release_that_it_names_and_says_so_when_the_slot_serves_another(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.step(20)
    site.serves["green"] = NEWER  # started by hand, by somebody who shows no token
    record = ensure_rolled_back(site.place, "r1")
    assert record is not None
    assert (record.phase, site.weights()) == (Phase.ROLLED_BACK, {"blue": 10_000})
    assert (site.running, site.serves["green"]) == ({"blue", "green"}, NEWER)
    assert "now serves another repository" in record.events[-1].summary


def test_of_two_that_took_over_with_the_same_epoch_the_one_with_the_later_lease_acts(tmp_path: Path) -> None:
    admit(tmp_path, FencingToken(epoch=7, lease=3))
    admit(tmp_path, FencingToken(epoch=7, lease=4))
    with pytest.raises(Fenced, match="epoch 7"):
        admit(tmp_path, FencingToken(epoch=7, lease=3))
    assert newest_token(tmp_path) == FencingToken(epoch=7, lease=4)


def test_a_fence_that_cannot_be_read_lets_nobody_act(tmp_path: Path) -> None:
    (tmp_path / "fence.json").write_text("{")
    with pytest.raises(IntegrityError, match="remove the file"):
        admit(tmp_path, FencingToken(epoch=7, lease=3))


def test_a_full_disk_keeps_nobody_from_acting_who_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    admit(tmp_path, FencingToken(epoch=7, lease=3))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr("llm_pipeline.serving.slot_fence.replace_durably", full)
    admit(tmp_path, FencingToken(epoch=8, lease=4))
    with pytest.raises(Fenced):
        admit(tmp_path, FencingToken(epoch=6, lease=4))


def begin(site: Site) -> None:
    site.step(20)


def roll_back_by_itself(site: Site) -> None:
    site.faulty = True
    site.step(20)


def roll_back_on_request(site: Site) -> None:
    site.step(20)
    ensure_rolled_back(site.place, "r1")


def frozen_at(root: Path, act: Callable[[Site], None], every: int) -> Iterator[tuple[Site, int]]:
    """The site once somebody who was frozen at a boundary of `act`, while a newer release went all the way, has woken.

    Each comes with how many effects there were when it woke.
    """
    dry = Site(root / "dry")
    act(dry)
    assert dry.boundary > 20
    for boundary in range(1, dry.boundary + 1, every):
        site, done = Site(root / str(boundary), freeze_at=boundary), []

        def meanwhile(site: Site = site, done: list[int] = done) -> None:
            promote_newer(site, NEWER)
            done.append(len(site.effects))

        site.meanwhile = meanwhile
        with contextlib.suppress(Fenced, LeaseHeld, LeaseLost, Conflict):
            act(site)
        assert len(done) == 1, boundary
        yield site, done[0]


@pytest.mark.parametrize("act", [begin, roll_back_by_itself, roll_back_on_request])
@pytest.mark.parametrize("every", [17, pytest.param(1, marks=pytest.mark.thorough)])
def test_whoever_was_frozen_anywhere_moves_no_traffic_and_touches_no_server_when_it_wakes(
    tmp_path: Path, act, every: int
) -> None:
    for site, woke in frozen_at(tmp_path, act, every):
        assert site.record("r2").phase is Phase.PROMOTED, site.effects
        assert (site.serves["green"], site.weights()) == (NEWER, PROMOTED), site.effects
        assert site.running == {"blue", "green"}, site.effects
        done = [effect for effect in site.effects[woke:] if effect.startswith(("start", "stop", "route"))]
        assert done == [], site.effects
