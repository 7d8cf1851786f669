"""What a report says of a canary that was taken back."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import urlsplit

from llm_pipeline.canary.record import CanaryEvent, EventKind
from llm_pipeline.reporting.collect import collect
from llm_pipeline.reporting.headline import find_rollback


def told(at: float, kind: EventKind, percent: float, summary: str = "") -> CanaryEvent:
    return CanaryEvent(number=1, at=at, kind=kind, percent=percent, summary=summary, by="r@host.1")


EVENTS = (
    told(1.0, EventKind.SHIFTED, 5.0),
    told(5.0, EventKind.SHIFTED, 25.0),
    told(8.5, EventKind.ROLLING_BACK, 25.0, "worse than stable: errors"),
    told(8.9, EventKind.ROLLED_BACK, 0.0),
)


def test_the_step_the_reason_and_both_times_are_found() -> None:
    rollback = find_rollback(EVENTS)
    assert rollback is not None
    assert (rollback.step, rollback.reason) == ("25 %", "worse than stable: errors")
    assert rollback.seconds_after_shift == 3.5
    assert round(rollback.seconds_until_stable or 0.0, 3) == 0.4


def test_traffic_that_never_came_back_is_not_said_to_be_back() -> None:
    rollback = find_rollback(EVENTS[:3])
    assert rollback is not None
    assert rollback.seconds_until_stable is None


def test_the_headline_says_what_when_what_serves_and_what_was_lost(sample, tmp_path: Path) -> None:
    release = sample.whole_release(tmp_path, good=False)
    sample.point_at(release, ("before", "none"))
    sentence = collect(release.store, sample.RELEASE).headline.sentence
    assert sentence.startswith("Taken back on cpu at the 25 % step, 20 s after the shift: Slow first tokens")
    assert "All traffic was back on stable 0.4 s later. Recipe none of release before serves." in sentence
    assert "Requests lost during the canary: 0 of " in sentence


def test_without_the_canarys_measurements_nothing_is_said_to_be_lost_or_not(sample, tmp_path: Path) -> None:
    release = sample.whole_release(tmp_path, good=False)
    shutil.rmtree(Path(urlsplit(release.store.uri).path) / "artifacts" / "canary")
    sentence = collect(release.store, sample.RELEASE).headline.sentence
    assert "Taken back on cpu: Slow first tokens" in sentence
    assert "lost" not in sentence


def test_a_rollback_without_confirmation_is_not_called_complete(sample, tmp_path: Path) -> None:
    release = sample.SampleRelease(tmp_path)
    release.add("rollback", "cpu", metrics={"phase": "rolled back", "traffic_confirmed": 0})
    assert "has not confirmed" in collect(release.store, sample.RELEASE).headline.sentence
