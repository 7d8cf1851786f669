"""A stage that ended with an error: the report says which, with what, and what to do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from llm_pipeline.base.errors import StageCrashed, Unsupported
from llm_pipeline.inspection.listing import release_rows
from llm_pipeline.release.decision import Decision, decision_name, refusal
from llm_pipeline.release.record import read_release_record
from llm_pipeline.reporting.collect import collect
from llm_pipeline.reporting.html import render_report

ERROR = Unsupported("the engine needs 92 GiB, the device has 80", where="targets/cpu.yaml", hint="take an int4 recipe")


@pytest.fixture
def release(sample, tmp_path: Path):
    """A release that has chosen its recipe."""
    written = sample.SampleRelease(tmp_path)
    written.measure_baseline()
    written.try_recipes(["fp8", "int4_naive"])
    return written


def test_the_headline_names_stage_error_place_and_advice(sample, release) -> None:
    sample.fail(release, "build", "cpu", ERROR)
    headline = collect(release.store, sample.RELEASE).headline
    assert (headline.state, headline.verdict) == ("failed", None)
    assert headline.sentence == (
        "Build, cpu failed with Unsupported, at targets/cpu.yaml: the engine needs 92 GiB, the device has 80. "
        "What to do: take an int4 recipe (docs/runbooks.md#unsupported)."
    )


def test_an_error_of_the_very_first_stages_still_makes_a_report(sample, tmp_path: Path) -> None:
    release = sample.SampleRelease(tmp_path)
    sample.fail(release, "download", "", StageCrashed("the process was killed"))
    data = collect(release.store, sample.RELEASE)
    advice = "Trying again may help (docs/runbooks.md#stagecrashed)."
    assert f"Download failed with StageCrashed: the process was killed. {advice}" in data.headline.sentence
    assert "StageCrashed (transient)" in render_report(data)


def test_an_error_that_the_release_does_not_depend_on_is_told_and_stops_nothing(sample, release) -> None:
    sample.fail(release, "accuracy", "int4_awq", ERROR)
    sample.fail(release, "staging_down", "cpu", ERROR)
    data = collect(release.store, sample.RELEASE)
    assert data.headline.state == "on its way"
    assert [failed.decides for failed in data.failures] == [False, False]
    assert "Accuracy, int4_awq failed with Unsupported" in data.headline.sentence
    assert "1 more failed: staging down, cpu." in data.headline.sentence


def test_a_failed_rollback_is_never_hidden(sample, rolled_back, tmp_path: Path) -> None:
    release = sample.whole_release(tmp_path, good=False)
    sample.fail(release, "rollback", "cpu", StageCrashed("the router did not answer"))
    assert collect(release.store, sample.RELEASE).headline.state == "failed"


def test_a_long_message_is_shortened_in_the_headline_and_whole_in_the_page(sample, release) -> None:
    message = "line of a traceback <b>\n" * 40
    sample.fail(release, "build", "cpu", Unsupported(message))
    data = collect(release.store, sample.RELEASE)
    assert len(data.headline.sentence) < 450
    html = render_report(data)
    assert html.count("line of a traceback &lt;b&gt;\n") == 40
    assert "<b>" not in html


@pytest.mark.parametrize(
    ("answer", "by", "told"),
    [
        ("denied", "anna", "Denied by anna, 2026-11-27 14:03 UTC."),
        ("timed out", "", "Not answered in time, 2026-11-27"),
    ],
)
def test_a_release_that_nobody_approved_says_who_when_and_what_was_asked(sample, release, answer, by, told) -> None:
    record = read_release_record(release.store, sample.RELEASE)
    at = datetime(2026, 11, 27, 14, 3, tzinfo=UTC).timestamp()
    asked = Decision(
        run=record.created_at.isoformat(), step="approve", targets=("cpu",), question="Promote it on cpu?",
        evidence="0" * 64, answer=answer, answered_at=at, by=by,
    )  # fmt: skip
    release.store.write_document(decision_name(sample.RELEASE, "approve"), asked.model_dump(mode="json"), None)
    headline = collect(release.store, sample.RELEASE).headline
    assert headline.state == "not approved"
    assert headline.sentence.startswith(told)
    assert headline.sentence.endswith("The question: Promote it on cpu?")
    (row,) = release_rows(release.store)
    assert row.verdict == answer
    assert refusal([asked], record.created_at + timedelta(seconds=1)) is None  # another run asks anew


def test_a_draft_says_what_is_waited_for(sample, release) -> None:
    record = read_release_record(release.store, sample.RELEASE)
    asked = Decision(
        run=record.created_at.isoformat(), step="approve", targets=("cpu",), question="Promote it on cpu?",
        evidence="0" * 64,
    )  # fmt: skip
    release.store.write_document(decision_name(sample.RELEASE, "approve"), asked.model_dump(mode="json"), None)
    headline = collect(release.store, sample.RELEASE).headline
    assert headline.state == "on its way"
    assert headline.sentence == "Waiting for an answer. The question: Promote it on cpu?"
