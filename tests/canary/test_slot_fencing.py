"""A controller that was frozen and wakes up changes no slot that a newer one has used, whatever it was about to do."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from simulated import CANDIDATE, Site

from llm_pipeline.base.errors import Fenced, IntegrityError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.record import Phase, take_over
from llm_pipeline.operations.rollback import ensure_rolled_back
from llm_pipeline.serving.slot_fence import FencingToken, admit, newest_token
from llm_pipeline.store.artifact_store import Conflict
from llm_pipeline.store.lease import LeaseHeld, LeaseLost

pytestmark = pytest.mark.usefixtures("fast")

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
