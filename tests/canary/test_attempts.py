from __future__ import annotations

from datetime import UTC, datetime

import pytest

from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.access_log import LogCursor
from llm_pipeline.canary.plan import HISTORY_LENGTH, CanaryPlan, first_attempt, is_over, next_attempt
from llm_pipeline.canary.record import CanaryRecord, Phase
from llm_pipeline.canary.router import RouteState, all_to
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.store.place_state import Pointer

MONDAY, TUESDAY = datetime(2026, 1, 5, tzinfo=UTC), datetime(2026, 1, 6, tzinfo=UTC)


def plan(run: str, since: datetime | None = MONDAY) -> CanaryPlan:
    old = ArtifactRef(kind="model_repository", digest="a" * 64)
    production = since and Pointer(release_id="r0", repository=old, slot="blue", recipe="none", promoted_at=since)
    candidate = ArtifactRef(kind="model_repository", digest="b" * 64)
    policy = CanaryPolicy()
    return CanaryPlan(
        release_id="r1", run=run, target="cpu", candidate=candidate, production=production or None, policy=policy
    )


def record(phase: Phase, since: datetime | None = MONDAY) -> CanaryRecord:
    applied = all_to("green", owner="r1", epoch=3)
    return first_attempt(plan("one", since), LogCursor()).model_copy(
        update={"phase": phase, "applied": applied, "epoch": 3}
    )


def traffic_on_green() -> RouteState:
    return all_to("green", owner="somebody", epoch=4)


def traffic_on_blue() -> RouteState:
    return all_to("blue", owner="somebody", epoch=4)


@pytest.mark.parametrize("phase", list(Phase))
def test_within_one_run_no_canary_is_over(phase) -> None:
    assert not is_over(record(phase), plan("one"), traffic_on_blue)


@pytest.mark.parametrize("phase", [Phase.ROLLED_BACK, Phase.ROLLING_BACK])
def test_a_canary_that_an_earlier_run_rolled_back_is_over(phase) -> None:
    assert is_over(record(phase), plan("two"), traffic_on_blue)


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.WARM, Phase.SHIFTING, Phase.BAKING, Phase.PASSED, Phase.PAUSED])
def test_an_unfinished_canary_is_continued_by_whichever_run_comes(phase) -> None:
    assert not is_over(record(phase), plan("two"), traffic_on_green)


def test_a_promotion_that_nobody_settled_yet_is_not_over() -> None:
    assert not is_over(record(Phase.PROMOTED), plan("two"), traffic_on_green)
    assert not is_over(record(Phase.PROMOTED, None), plan("two", None), traffic_on_green)


def test_a_promotion_is_over_once_production_was_moved_or_its_traffic_is_gone() -> None:
    assert is_over(record(Phase.PROMOTED), plan("two", TUESDAY), traffic_on_green)
    assert is_over(record(Phase.PROMOTED), plan("two"), traffic_on_blue)


def test_the_next_attempt_begins_anew_and_remembers_the_latest_few() -> None:
    latest = record(Phase.ROLLED_BACK)
    for number in range(HISTORY_LENGTH + 3):
        again = next_attempt(latest, plan(f"run {number}", TUESDAY), LogCursor(inode=7, offset=9))
        assert (again.phase, again.passed_percent, again.applied, again.marks) == (Phase.PENDING, 0.0, None, ())
        assert (again.epoch, again.began_cursor.offset, again.production_since) == (3, 9, TUESDAY)
        latest = again.model_copy(update={"phase": Phase.ROLLED_BACK})
    runs = [attempt.run for attempt in latest.history]
    assert runs == [f"run {number}" for number in range(2, HISTORY_LENGTH + 2)]


def test_a_record_survives_storage_with_its_history() -> None:
    again = next_attempt(record(Phase.PROMOTED), plan("two", TUESDAY), LogCursor())
    assert CanaryRecord.model_validate_json(again.model_dump_json()) == again
