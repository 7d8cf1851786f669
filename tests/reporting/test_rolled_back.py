"""What a report says of a canary that was taken back."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from llm_pipeline.base.verdict import Evidence, Verdict, judge
from llm_pipeline.canary.observations import ArmPoint, TimelinePoint
from llm_pipeline.canary.timeline import TimelineMark
from llm_pipeline.reporting.collect import collect
from llm_pipeline.reporting.model import CanaryStudy
from llm_pipeline.reporting.production import _caught, _lost, find_rollback
from llm_pipeline.store.pointer_writing import write_pointers
from llm_pipeline.store.pointers import Pointers, read_pointers

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


def test_the_headline_says_what_when_that_production_is_unchanged_and_what_was_lost(sample, tmp_path: Path) -> None:
    release = sample.whole_release(tmp_path, good=False)
    sample.point_at(release, ("before", "none"))
    sentence = collect(release.store, sample.RELEASE).headline.sentence
    assert sentence.startswith("Caught on cpu at the 25 % step, 20 s after the shift: slow first tokens")
    assert "All traffic was back on stable 0.4 s later." in sentence
    assert "Production is unchanged: none of release before serves." in sentence
    assert "No request was lost of the " in sentence


def test_the_numbers_behind_what_was_caught_are_given_when_there_are_any() -> None:
    detail = "regressed: candidate 3/3, stable 0/75 beyond 26 ms; e-value 144 (limit 60)"
    fact = Evidence(name="slow end to end", verdict=Verdict.NO_GO, measured=1.0, samples=3, detail=detail)
    text = _caught("cpu", find_rollback(MARKS), judge("worse than stable at 25 % (slow end to end)", [fact]))
    assert text.endswith("worse than stable at 25 % (slow end to end); candidate 3/3, stable 0/75 beyond 26 ms.")
    ended = fact.model_copy(update={"detail": "the candidate's server ended"})
    text = _caught("cpu", None, judge("the candidate's server ended at 25 %", [ended]))
    assert text == "Caught on cpu: the candidate's server ended at 25 %."


def test_an_undecided_canary_is_taken_back_and_has_caught_nothing() -> None:
    fact = Evidence(name="requests", verdict=Verdict.INCONCLUSIVE, measured=3.0, samples=3)
    text = _caught("cpu", None, judge("not decided after 60 s at 5 %", [fact]))
    assert text == "Taken back on cpu: not decided after 60 s at 5 %."


def test_production_that_moved_on_since_is_not_called_unchanged(sample, tmp_path: Path) -> None:
    release = sample.whole_release(tmp_path, good=False)
    sample.point_at(release, ("before", "none"))
    pointers, revision = read_pointers(release.store, "example/tiny-llama", "cpu")
    assert pointers.production is not None
    later = pointers.production.model_copy(update={"promoted_at": sample.START + timedelta(days=9)})
    write_pointers(release.store, "example/tiny-llama", "cpu", Pointers(production=later), revision)
    sentence = collect(release.store, sample.RELEASE).headline.sentence
    assert "unchanged" not in sentence
    assert "Production has moved on since" in sentence


def test_lost_requests_are_counted_on_both_sides() -> None:
    arms = {"stable": ArmPoint(requests=90, errors=1, lost=1), "candidate": ArmPoint(requests=10, errors=4, lost=2)}
    study = CanaryStudy(target="cpu", samples=(TimelinePoint(at_seconds=0.0, intended_share=0.1, **arms),), marks=())
    assert _lost(study) == "3 requests were lost of the 100 seen during the canary (10 of them sent to the candidate)."


def test_without_the_canarys_measurements_nothing_is_said_to_be_lost_or_not(sample, tmp_path: Path) -> None:
    release = sample.whole_release(tmp_path, good=False)
    shutil.rmtree(Path(urlsplit(release.store.uri).path) / "artifacts" / "canary")
    sentence = collect(release.store, sample.RELEASE).headline.sentence
    assert "Caught on cpu: slow first tokens" in sentence
    assert "is not known" in sentence


def test_a_rollback_without_confirmation_is_not_called_complete(sample, tmp_path: Path) -> None:
    release = sample.SampleRelease(tmp_path)
    release.add("rollback", "cpu", metrics={"phase": "rolled back", "traffic_confirmed": 0})
    assert "has not confirmed" in collect(release.store, sample.RELEASE).headline.sentence
