"""Another model in a place is refused by every act, before a server is touched; a hand-over is a canary over it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from place_here import serve
from resolved_release import resolve
from simulated import PATIENCE, POLICY, STABLE, Site

from llm_pipeline.base.errors import PipelineError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.access_log import LogCursor
from llm_pipeline.canary.record import CanaryJournal, CanaryPlan, Phase, new_attempt
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.operations.rollback import roll_back
from llm_pipeline.operations.served_place import place_with_router
from llm_pipeline.operations.upkeep import Promotion, promote
from llm_pipeline.release.contract import StageFailure, StageRequest
from llm_pipeline.release.execute import execute
from llm_pipeline.store.place_state import (
    PlaceState,
    PlaceTaken,
    Pointer,
    claim_place,
    hand_over,
    read_place,
    serving_at,
)

OURS, THEIRS = "demo/ours", "demo/theirs"
NEW = ArtifactRef(kind="model_repository", digest="c" * 64)
PLACE = {
    "staging": {"http": 18541, "grpc": 18542, "metrics": 18543, "openai": 18560},
    "blue": {"http": 18544, "grpc": 18545, "metrics": 18546, "openai": 18561},
    "green": {"http": 18547, "grpc": 18548, "metrics": 18549, "openai": 18562},
    "router": {"port": 18550, "admin_port": 18551},
}


def pointer(release: str, repository: ArtifactRef, slot: str = "blue") -> Pointer:
    since = datetime(2026, 1, 1, tzinfo=UTC)
    return Pointer.model_validate(
        {"release_id": release, "repository": repository, "slot": slot, "recipe": "none", "promoted_at": since}
    )


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A place that serves our model."""
    place = Site(tmp_path)
    serve(place.store, OURS, "cpu", pointer("r0", STABLE))
    claim_place(place.store, "cpu", OURS, by="r0")
    return place


@pytest.fixture
def deployment(site: Site) -> Deployment:
    return Deployment.model_validate(
        {
            "name": "here",
            "store": site.store.uri,
            "work_root": str(site.root / "work"),
            "state_root": str(site.root / "state"),
            "environments": {"model": "python"},
            "triton_home": str(site.root),
            "places": {"cpu": PLACE},
        }
    )


def canary(site: Site, model_id: str) -> StageFailure:
    config = {
        "run": "first run",
        "model_id": model_id,
        "target": "cpu",
        "step_percent": 20,
        "policy": POLICY,
        "place": PLACE,
        "triton_home": str(site.root),
        "python": "python",
        "state_root": str(site.root / "state"),
        "workload": {"prompts": "p.jsonl", "rate_per_second": 1, "duration_seconds": 1},
    }
    outcome = execute(
        StageRequest(
            release_id="theirs-1",
            stage="canary",
            subject="cpu:20",
            config=config,
            inputs={"repository": site.store.publish("model_repository", _directory(site.root))},
            store={"uri": site.store.uri},
            work_root=str(site.root / "work"),
        )
    )
    assert isinstance(outcome, StageFailure)
    return outcome


def _directory(root: Path) -> Path:
    directory = root / "repository"
    directory.mkdir()
    (directory / "config.pbtxt").write_text("")
    return directory


def test_a_canary_of_another_model_is_refused_before_router_or_slot_is_touched(site: Site) -> None:
    resolve(site.store, "theirs-1", model=THEIRS)
    before = list(site.effects)
    refused = canary(site, THEIRS)
    assert refused.error.type == "PlaceTaken"
    assert refused.error.family == "terminal"
    assert "--replace" in refused.error.hint
    assert not (site.root / "state").exists()
    assert site.effects == before


def test_promotion_rollback_and_repair_of_another_model_are_refused(site: Site, deployment: Deployment) -> None:
    acts = [
        lambda: settle(site),
        lambda: roll_back(place_with_router(site.store, deployment, THEIRS, "cpu"), by="bob"),
    ]
    for act in acts:
        with pytest.raises(PlaceTaken, match=f"belongs to {OURS}"):
            act()
    assert not (site.root / "state").exists()


def test_a_hand_over_is_a_canary_over_the_model_that_serves_and_leaves_one_in_production(site: Site) -> None:
    hand_over(site.store, "cpu", THEIRS, by="alice")
    serving = serving_at(site.store, "cpu")
    assert serving is not None
    plan = CanaryPlan(
        release_id="theirs-1",
        run="run",
        target="cpu",
        candidate=NEW,
        production=serving.pointer,
        policy=CanaryPolicy.model_validate(POLICY),
        patience=PATIENCE,
    )
    begun = new_attempt(plan, LogCursor())
    assert (begun.stable, begun.candidate) == ("blue", "green")
    CanaryJournal(site.store, "theirs-1", "cpu").save(begun.model_copy(update={"phase": Phase.PROMOTED}))

    for _ in range(2):
        settled = settle(site)
        assert settled.production is not None
        assert (settled.production.release_id, settled.production.slot) == ("theirs-1", "green")
        assert (settled.way_back_to, settled.model_id, settled.by) == (None, THEIRS, "theirs-1")
    left = read_place(site.store, "cpu").of(OURS)
    assert (left.production, left.previous) == (None, pointer("r0", STABLE))
    with pytest.raises(PipelineError, match=f"belongs to {THEIRS}"):
        promoted(site, Promotion(OURS, "cpu", "r0", STABLE, "none"))


@pytest.mark.usefixtures("fast")
def test_users_stay_with_the_model_that_serves_until_the_other_ones_promotion_and_lose_nothing(site: Site) -> None:
    hand_over(site.store, "cpu", THEIRS, by="alice")
    site.repositories["theirs-1"] = NEW
    assert site.steps(20, release="theirs-1") == ["GO"]
    roll_back(replace(site.place, model_id=THEIRS), by="anna")
    serving = serving_at(site.store, "cpu")
    assert (serving, site.weights(), site.running) == ((OURS, pointer("r0", STABLE)), {"blue": 10_000}, {"blue"})
    assert site.steps(20, 50, 100, release="theirs-1", run="second run") == ["GO"] * 3
    assert settle(site).model_id == THEIRS
    assert (site.weights(), site.router.state.standby) == ({"green": 10_000}, None), "nobody gets the other model's"
    assert site.lost == 0


def settle(place: Site) -> PlaceState:
    return promoted(place, Promotion(THEIRS, "cpu", "theirs-1", NEW, "none"))


def promoted(place: Site, promotion: Promotion) -> PlaceState:
    resolve(place.store, promotion.release_id, model=promotion.model_id)
    return promote(place.store, promotion, find_router=lambda _: place.router, patience=PATIENCE)
