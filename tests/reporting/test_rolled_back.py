"""What a report says of a canary that was taken back."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import urlsplit

from llm_pipeline.canary.timeline import TimelineMark
from llm_pipeline.reporting.collect import collect
from llm_pipeline.reporting.production import find_rollback

MARKS = (
    TimelineMark(at_seconds=1.0, label="5 %"),
    TimelineMark(at_seconds=5.0, label="25 %"),
    TimelineMark(at_seconds=8.5, label="rolling back: worse than stable: errors"),
    TimelineMark(at_seconds=8.9, label="traffic on stable"),
)


def test_the_step_the_reason_and_both_times_are_found() -> None:
    rollback = find_rollback(MARKS)
    assert rollback is not None
    assert (rollback.step, rollback.reason) == ("25 %", "worse than stable: errors")
    assert rollback.seconds_after_shift == 3.5
    assert round(rollback.seconds_until_stable or 0.0, 3) == 0.4


def test_a_rollback_that_was_ordered_has_no_reason() -> None:
    rollback = find_rollback((MARKS[0], MARKS[3]))
    assert rollback is not None
    assert (rollback.reason, rollback.step) == ("", "5 %")


def test_traffic_that_never_came_back_is_not_said_to_be_back() -> None:
    rollback = find_rollback(MARKS[:3])
    assert rollback is not None
    assert rollback.seconds_until_stable is None


def test_a_canary_without_a_rollback_has_none() -> None:
    assert find_rollback(MARKS[:2]) is None


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
