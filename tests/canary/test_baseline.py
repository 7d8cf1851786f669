"""What a canary learns of stable before its first step: as long a history as there is, of stable as it serves now."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from looking import request

from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.access_log import LogCursor, ObservedRequest
from llm_pipeline.canary.record import CanaryPlan, new_attempt
from llm_pipeline.canary.traffic import LoggedTraffic
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.store.place_state import Pointer


class Log:
    """A log of which the newest part is short."""

    def __init__(self, requests: list[ObservedRequest], newest: int) -> None:
        self.requests, self.newest, self.reads = requests, newest, []

    def recent(self, since: float, most_bytes: int = 0) -> list[ObservedRequest]:
        self.reads.append(most_bytes)
        found = self.requests if most_bytes else self.requests[-self.newest :]
        return [one for one in found if one.started_at >= since]


def baseline(log: Log, *, production_hours: float):
    since = datetime.fromtimestamp(time.time() - 3600.0 * production_hours, UTC)
    old, new = (ArtifactRef(kind="model_repository", digest=digit * 64) for digit in "ab")
    production = Pointer(release_id="r0", repository=old, slot="blue", recipe="none", promoted_at=since)
    plan = CanaryPlan(
        release_id="r1", run="run", target="cpu", candidate=new, production=production, policy=CanaryPolicy()
    )
    traffic = LoggedTraffic(log)  # type: ignore[arg-type] - a log in memory
    return traffic.baseline(new_attempt(plan, LogCursor()), plan.policy)


@pytest.mark.parametrize(("hours", "seconds"), [(5.0, 3600), (0.5, 1800)])
def test_stables_history_of_an_hour_is_learned_from_as_far_as_it_is_production(hours, seconds) -> None:
    now = time.time()
    log = Log([request(at=now - 7200 + number) for number in range(7200)], newest=100)
    found = baseline(log, production_hours=hours)
    assert found.thresholds is not None
    assert found.requests == pytest.approx(seconds, abs=5)
    variation = found.thresholds.variations["slow end"]
    assert variation.segments * variation.blocks == pytest.approx(seconds / 10, abs=variation.blocks)


def test_a_long_log_is_not_read_while_stable_has_little_traffic() -> None:
    log = Log([request(at=time.time() - 40.0 + number) for number in range(40)], newest=40)
    assert baseline(log, production_hours=5.0).thresholds is None
    assert log.reads == [0]
