"""What becomes production, and in whose place: another model is refused by every act before a server is touched."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deployment_here import write_deployment
from place_here import canary_record, serve
from resolved_release import resolve
from simulated import FIRST, MODEL, POLICY, Served, repository

from llm_pipeline.canary.record import CanaryJournal, Phase, lease_name
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.operations.rollback import roll_back
from llm_pipeline.operations.served_place import PlaceBusy, place_with_router
from llm_pipeline.operations.upkeep import NotPromoted
from llm_pipeline.release.contract import StageFailure, StageRequest
from llm_pipeline.release.execute import execute
from llm_pipeline.store.lease import Lease
from llm_pipeline.store.place_state import PlaceTaken, hand_over, read_place, serving_at

pytestmark = pytest.mark.usefixtures("fast")

THEIRS = "demo/theirs"
NOT_PROMOTED = [(phase, "r2", phase.value) for phase in (Phase.BAKING, Phase.PASSED, Phase.PAUSED, Phase.ROLLED_BACK)]


@pytest.fixture
def site(tmp_path: Path) -> Served:
    return Served(tmp_path)


@pytest.fixture
def deployment(site: Served) -> Deployment:
    written = load_yaml(write_deployment(site.root, 18541), Deployment)
    return written.model_copy(update={"name": "here"})


def ended_canary(site: Served, phase: Phase, of: str = "r2") -> None:
    record = canary_record(repository=repository(of), production_since=FIRST.promoted_at, phase=phase)
    CanaryJournal(site.store, "r2", "cpu").save(record)


def test_production_does_not_move_while_somebody_else_acts_on_the_place(site: Served) -> None:
    ended_canary(site, Phase.PROMOTED)
    with Lease(site.store, lease_name("cpu")), pytest.raises(PlaceBusy, match="somebody is moving the traffic of cpu"):
        site.settle("r2")
    assert site.pointers.production == FIRST


@pytest.mark.parametrize(
    ("phase", "of", "words"), [*NOT_PROMOTED, (None, "", "has no canary"), (Phase.PROMOTED, "r3", "r2 has a canary")]
)
def test_only_what_its_own_canary_promoted_becomes_production(site: Served, phase, of: str, words: str) -> None:
    if phase is not None:
        ended_canary(site, phase, of)
    with pytest.raises(NotPromoted, match=words):
        site.settle("r2")


def test_a_promotion_that_production_moved_past_does_not_count(site: Served) -> None:
    ended_canary(site, Phase.PROMOTED)
    moved = serve(site.store, MODEL, "cpu", FIRST.model_copy(update={"promoted_at": datetime.now(UTC)}))
    with pytest.raises(NotPromoted, match="has moved since"):
        site.settle("r2")
    assert site.pointers == moved


def test_a_canary_of_another_model_is_refused_before_router_or_slot_is_touched(
    site: Served, deployment: Deployment
) -> None:
    resolve(site.store, "theirs-1", model=THEIRS)
    (site.root / "repository").mkdir()
    (site.root / "repository/config.pbtxt").touch()
    config = {
        "run": "first run", "model_id": THEIRS, "target": "cpu", "step_percent": 20, "policy": POLICY,
        "place": deployment.places["cpu"].model_dump(mode="json"), "triton_home": str(site.root), "python": "python",
        "state_root": deployment.state_root,
        "workload": {"prompts": "p.jsonl", "rate_per_second": 1, "duration_seconds": 1},
    }  # fmt: skip
    request = StageRequest(
        release_id="theirs-1",
        stage="canary",
        subject="cpu:20",
        config=config,
        inputs={"repository": site.store.publish("model_repository", site.root / "repository")},
        store={"uri": site.store.uri},
        work_root=deployment.work_root,
    )
    before, refused = list(site.effects), execute(request)
    assert isinstance(refused, StageFailure)
    assert (refused.error.type, refused.error.family) == ("PlaceTaken", "terminal")
    assert "--replace" in refused.error.hint
    assert not (site.root / "state").exists()
    assert site.effects == before


def test_promotion_and_rollback_of_another_model_are_refused(site: Served, deployment: Deployment) -> None:
    with pytest.raises(PlaceTaken, match=f"belongs to {MODEL}"):
        site.settle("theirs-1", THEIRS)
    with pytest.raises(PlaceTaken, match=f"belongs to {MODEL}"):
        roll_back(place_with_router(site.store, deployment, THEIRS, "cpu"), by="bob")
    assert not (site.root / "state").exists()


def test_a_hand_over_is_a_canary_over_the_model_that_serves_and_leaves_one_in_production(site: Served) -> None:
    hand_over(site.store, "cpu", THEIRS, by="alice")
    site.repositories["theirs-1"] = repository("theirs-1")
    assert site.steps(50, release="theirs-1") == ["GO"]
    roll_back(replace(site.place, model_id=THEIRS), by="anna")
    assert (serving_at(site.store, "cpu"), site.weights(), site.running) == ((MODEL, FIRST), {"blue": 10_000}, {"blue"})
    assert site.steps(50, 100, release="theirs-1", run="second run") == ["GO"] * 2
    for _ in range(2):
        settled = site.settle("theirs-1", THEIRS)
        assert settled.production is not None
        assert (settled.production.release_id, settled.production.slot) == ("theirs-1", "green")
        assert (settled.way_back_to, settled.model_id, settled.by) == (None, THEIRS, "theirs-1")
    assert (site.weights(), site.router.state.standby) == ({"green": 10_000}, None), "nobody gets the other model's"
    left = read_place(site.store, "cpu").of(MODEL)
    assert (left.production, left.previous) == (None, FIRST)
    with pytest.raises(PlaceTaken, match=f"belongs to {THEIRS}"):
        site.settle("r0")
    assert site.lost == 0
