from __future__ import annotations

from datetime import UTC, datetime

import pytest
from place_here import serve
from resolved_release import resolve

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.record import CanaryJournal, CanaryRecord, Phase, lease_name
from llm_pipeline.canary.router import Patience
from llm_pipeline.operations.served_place import PlaceBusy
from llm_pipeline.operations.upkeep import NotPromoted, Promotion, promote
from llm_pipeline.store.lease import Lease
from llm_pipeline.store.place_state import PlaceState, Pointer, read_place

OLD = ArtifactRef(kind="model_repository", digest="a" * 64)
NEW = ArtifactRef(kind="model_repository", digest="b" * 64)
MODEL = "demo/tiny"


@pytest.fixture
def store(tmp_path) -> LocalStore:
    store = LocalStore(f"file://{tmp_path}/store")
    old = Pointer(release_id="r1", repository=OLD, slot="blue", recipe="none", promoted_at=datetime.now(UTC))
    serve(store, MODEL, "cpu", old)
    return store


def canary(store: LocalStore, phase: Phase, repository: ArtifactRef = NEW) -> None:
    production = read_place(store, "cpu").production
    record = CanaryRecord(
        release_id="r2",
        target="cpu",
        repository=repository,
        stable="blue",
        candidate="green",
        production_since=production.promoted_at if production else None,
        phase=phase,
        began_at=0.0,
    )
    CanaryJournal(store, "r2", "cpu").save(record)


def settle(store: LocalStore) -> PlaceState:
    resolve(store, "r2", model=MODEL)
    promotion = Promotion(MODEL, "cpu", "r2", NEW, "int8")
    return promote(store, promotion, find_router=lambda _: None, patience=Patience())


def test_production_does_not_move_while_somebody_else_acts_on_the_place(store) -> None:
    canary(store, Phase.PROMOTED)
    with Lease(store, lease_name("cpu")), pytest.raises(PlaceBusy, match="somebody is moving the traffic of cpu now"):
        settle(store)
    production = read_place(store, "cpu").production
    assert production is not None
    assert production.release_id == "r1"


OTHER = ArtifactRef(kind="model_repository", digest="c" * 64)
NOT_PROMOTED = [(phase, NEW, phase.value) for phase in (Phase.BAKING, Phase.PASSED, Phase.PAUSED, Phase.ROLLED_BACK)]


@pytest.mark.parametrize(
    ("phase", "repository", "words"),
    [*NOT_PROMOTED, (None, NEW, "has no canary"), (Phase.PROMOTED, OTHER, "r2 has a canary")],
)
def test_only_what_its_own_canary_promoted_becomes_production(store, phase, repository, words) -> None:
    if phase is not None:
        canary(store, phase, repository)
    with pytest.raises(NotPromoted, match=words):
        settle(store)


def test_a_promotion_that_production_moved_past_does_not_count(store) -> None:
    canary(store, Phase.PROMOTED)
    pointers = read_place(store, "cpu")
    assert pointers.production is not None
    again = pointers.production.model_copy(update={"promoted_at": datetime.now(UTC)})
    moved = serve(store, MODEL, "cpu", again)
    with pytest.raises(NotPromoted, match="has moved since"):
        settle(store)
    assert read_place(store, "cpu") == moved
