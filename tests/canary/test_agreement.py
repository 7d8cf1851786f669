"""What is called production is what users get, or `doctor` says so."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.record import CanaryRecord, Phase
from llm_pipeline.canary.router import RouteState, all_to
from llm_pipeline.operations.status import disagreements
from llm_pipeline.store.place_state import PlaceState, Pointer, WayBack

NOW = datetime.now(UTC)
OLD, NEW = (ArtifactRef(kind="model_repository", digest=letter * 64) for letter in "ab")
SERVES = Pointer(release_id="r1", repository=OLD, slot="blue", recipe="none", promoted_at=NOW)
PLACE = PlaceState(model_id="demo/tiny", production=SERVES)
SPLIT = RouteState(weights={"blue": 8_000, "green": 2_000}, candidate="green", owner="r2", epoch=3)


def canary(phase: Phase) -> CanaryRecord:
    return CanaryRecord(
        release_id="r2", target="cpu", repository=NEW, stable="blue", candidate="green", began_at=0.0,
        production_since=NOW, phase=phase,
    )  # fmt: skip


def found(
    record: CanaryRecord | None = None,
    traffic: RouteState | None = None,
    serves: str | None = OLD.digest,
    way_back: WayBack | None = None,
) -> list[str]:
    told = traffic or all_to("blue", owner="test", epoch=1)
    place = PLACE.model_copy(update={"way_back": way_back})
    return list(disagreements(place, record, told, {"blue": serves, "green": None}))


def test_production_with_all_the_traffic_and_its_own_server_fits() -> None:
    assert found() == found(canary(Phase.ROLLED_BACK)) == []


@pytest.mark.parametrize("phase", [Phase.SHIFTING, Phase.BAKING, Phase.PASSED, Phase.PAUSED, Phase.PROMOTED])
def test_a_canary_has_its_share_by_right(phase: Phase) -> None:
    assert found(canary(phase), SPLIT) == []


@pytest.mark.parametrize("record", [None, canary(Phase.ROLLED_BACK)])
def test_traffic_that_nobody_has_by_right_is_told(record: CanaryRecord | None) -> None:
    (problem,) = found(record, SPLIT)
    assert "production is r1 in blue, but the router sends it 80 % of the traffic (set by r2)" in problem


def test_traffic_on_the_release_that_was_taken_back_is_told() -> None:
    (problem,) = found(canary(Phase.ROLLED_BACK), all_to("green", owner="somebody", epoch=9))
    assert "the router sends it 0 %" in problem


@pytest.mark.parametrize(("serves", "words"), [(NEW.digest, "serves bbbb"), (None, "has no server")])
def test_a_slot_that_serves_something_else_is_told(serves: str | None, words: str) -> None:
    (problem,) = found(serves=serves)
    assert words in problem


def test_what_was_begun_and_is_not_done_is_told() -> None:
    undone = WayBack(left="r2", to="r1", by="anna", asked_at=NOW, repository=NEW)
    assert len(found(canary(Phase.ROLLING_BACK), way_back=undone)) == 2
