"""Rolling back, whoever asks and whenever: one operation, done once, after which everything says the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from resolved_release import resolve
from simulated import PATIENCE, STABLE, Killed, Site

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.moving import NoWayBack
from llm_pipeline.canary.record import Phase, judged_by_others, read_canary_record
from llm_pipeline.operations.rollback import carry_on, ensure_rolled_back, roll_back
from llm_pipeline.operations.status import disagreements
from llm_pipeline.operations.upkeep import NotPromoted, Promotion, promote
from llm_pipeline.store.place_state import PlaceState, read_place

pytestmark = pytest.mark.usefixtures("fast")

MODEL = "demo/tiny"


def repository(release: str) -> ArtifactRef:
    return STABLE if release == "r0" else ArtifactRef(kind="model_repository", digest=release[-1] * 64)


class Served(Site):
    """A site whose production is what its pointers say; r0 is, in blue."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.policy["steps_percent"] = [50, 100]
        self.repositories = {f"r{number}": repository(f"r{number}") for number in range(1, 6)}
        self.serve_first()

    def settle(self, release: str) -> None:
        resolve(self.store, release, model=MODEL)
        promotion = Promotion(MODEL, "cpu", release, repository(release), "none")
        promote(self.store, promotion, find_router=lambda _: self.router, patience=PATIENCE)

    def release(self, release: str) -> None:
        assert self.steps(50, 100, release=release) == ["GO"] * 2
        self.settle(release)

    def roll_back(self, leaving: str = "") -> None:
        roll_back(self.place, by="anna: it answers nonsense", leaving=leaving)

    @property
    def pointers(self) -> PlaceState:
        return read_place(self.store, "cpu")

    def serving(self) -> str:
        """The release that users get, once everything says so."""
        last = read_place(self.store, "cpu").on_trial
        record = read_canary_record(self.store, last, "cpu") if last else None
        served = {slot: self.serves[slot].digest if slot in self.running else None for slot in ("blue", "green")}
        assert list(disagreements(self.pointers, record, self.router.state, served)) == [], self.effects
        assert self.pointers.production is not None
        (slot,) = self.weights()
        assert slot == self.pointers.production.slot
        return self.pointers.production.release_id


@pytest.fixture
def site(tmp_path) -> Served:
    return Served(tmp_path)


def in_the_middle(site: Served) -> None:
    site.release("r1")
    assert site.steps(50, release="r2") == ["GO"]


def promoted(site: Served) -> None:
    assert site.steps(50, 100, release="r1") == ["GO"] * 2


def settled(site: Served) -> None:
    site.release("r1")


@pytest.mark.parametrize(
    ("reach", "left", "back"),
    [(in_the_middle, "r2", "r1"), (promoted, "r1", "r0"), (settled, "r1", "r0")],
)
def test_whenever_it_is_asked_it_leaves_the_newest_release_once(
    site, reach: Callable[[Served], None], left: str, back: str
) -> None:
    reach(site)
    site.sent = site.lost = 0
    site.roll_back()
    assert (site.serving(), site.record(left).phase) == (back, Phase.ROLLED_BACK)
    found = judged_by_others(site.store, left, "cpu", wait_seconds=0.0)
    assert found is not None
    assert (found.verdict, found.summary.endswith("by anna: it answers nonsense")) == ("INCONCLUSIVE", True)
    assert len(site.running) == 1
    effects = [effect for effect in site.effects if "leases" not in effect]
    site.roll_back()
    site.roll_back(leaving=left)
    ensure_rolled_back(site.place, left)
    assert [effect for effect in site.effects if "leases" not in effect] == effects, "asked again, nothing is changed"
    assert site.serving() == back
    assert (site.sent > 0, site.lost) == (True, 0)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("reach", [in_the_middle, promoted, settled])
def test_killed_anywhere_the_guard_or_the_next_one_who_asks_finishes_it_and_goes_no_further(
    tmp_path, reach, every: int
) -> None:
    back = "r1" if reach is in_the_middle else "r0"
    for number, site in enumerate(killed_everywhere(tmp_path, reach, every)):
        found = read_place(site.store, "cpu").way_back
        if number % 2 and found is not None and not found.done:
            assert carry_on(site.place) is not None
            assert site.serving() == back, site.effects
        assert carry_on(site.place) is None or number % 2 == 0
        site.roll_back()
        assert site.serving() == back, site.effects
        assert site.lost == 0, site.effects


def killed_everywhere(root: Path, reach: Callable[[Served], None], every: int) -> list[Served]:
    dry = Served(root / "dry")
    reach(dry)
    before = dry.boundary
    dry.roll_back()
    sites = []
    for boundary in range(1, dry.boundary - before + 1, every):
        site = Served(root / str(boundary))
        reach(site)
        site.sent = site.lost = 0
        site.die_at = site.boundary + boundary
        with pytest.raises(Killed):
            site.roll_back()
        site.buried()
        sites.append(site)
    assert len(sites) > 10 / every
    return sites


def test_what_was_taken_back_is_never_gone_back_to(site) -> None:
    site.release("r1")
    site.roll_back()
    assert site.pointers.taken_back == ("r1",)
    assert site.steps(50, release="r2") == ["GO"]
    site.roll_back()
    assert site.serving() == "r0"
    with pytest.raises(ConfigError, match="no previous release"):
        site.roll_back(leaving="r0")
    assert site.serving() == "r0"
    site.release("r3")
    assert site.serving() == "r3", "the next release finds a router that nobody has changed from outside"
    site.roll_back()
    assert site.serving() == "r0"


def test_production_is_left_only_by_name_once_its_canary_was_taken_back(site) -> None:
    in_the_middle(site)
    site.roll_back()
    site.roll_back()
    assert site.serving() == "r1"
    site.roll_back(leaving="r1")
    assert site.serving() == "r0"


def test_naming_production_ends_the_canary_over_it_too(site) -> None:
    in_the_middle(site)
    site.roll_back(leaving="r1")
    assert (site.serving(), site.record("r2").phase) == ("r0", Phase.ROLLED_BACK)


def test_a_release_that_neither_serves_nor_is_on_trial_is_refused(site) -> None:
    in_the_middle(site)
    with pytest.raises(ConfigError, match="r1 serves on cpu, and r9 is not on trial"):
        site.roll_back(leaving="r9")
    assert site.record("r2").phase is Phase.PASSED


def test_between_promotion_and_settlement_the_server_that_holds_the_traffic_is_the_last_to_stop(site) -> None:
    promoted(site)
    site.running.discard("blue")
    site.sent = site.lost = 0
    site.stable_starts = False
    with pytest.raises(NoWayBack):
        site.roll_back()
    assert (site.running, site.lost) == ({"green"}, 0)
    site.stable_starts = True
    site.roll_back()
    assert (site.serving(), site.lost) == ("r0", 0)
    with pytest.raises(NotPromoted):
        site.settle("r1")


def test_production_whose_previous_release_does_not_start_stays(site) -> None:
    site.release("r1")
    site.running.discard("blue")
    site.hung_starts = True
    site.sent = site.lost = 0
    with pytest.raises(NoWayBack):
        site.roll_back()
    assert (site.running & {"green"}, site.weights(), site.lost) == ({"green"}, {"green": 10_000}, 0)


def test_users_are_moved_to_a_restarted_server_once_the_router_takes_it(site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.release("r1")
    site.hung.add("blue")
    asked = []
    monkeypatch.setattr(site.router, "usable", lambda slot: asked.append((slot, site.weights())) or True)
    site.roll_back()
    assert site.serving() == "r0"
    assert ("blue", {"green": 10_000}) in asked
