"""What a report holds, for releases that got far and for those that did not, and what its headline says of them."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from deployment_here import write_bare_deployment
from place_here import serve
from sample_release import RECIPES, RELEASE, SampleRelease, one_fact, whole_release

from llm_pipeline.accuracy.baseline_gate import judge_baseline
from llm_pipeline.base.errors import StageCrashed, Unsupported
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.config.release import ExpectedScore
from llm_pipeline.inspection.release_summaries import summarize
from llm_pipeline.release.decision import Decision, decision_name, refusal
from llm_pipeline.release.record import read_release_record, release_record_name
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.reporting.html import render_report
from llm_pipeline.reporting.model import ReportData
from llm_pipeline.store.place_state import read_place

ERROR = Unsupported("the engine needs 92 GiB, the device has 80", where="targets/cpu.yaml", hint="take an int4 recipe")


def test_a_promoted_release_is_in_production_with_every_part(promoted_data: ReportData) -> None:
    data = promoted_data
    assert (data.headline.state, data.headline.verdict) == ("in production", Verdict.GO)
    assert "Recipe fp8 serves on cpu." in data.headline.sentence
    assert data.gaps == ()
    assert [(one.name, one.chosen_on) for one in data.trials if one.chosen_on] == [("fp8", ("cpu",))]
    assert [study.name for study in data.accuracy] == [*RECIPES, "served on cpu"]
    assert len(data.loads) == len(data.canaries) == 1
    (read,) = data.evaluation_data
    assert (read.repository, read.files) == ("openai/gsm8k", 2)
    assert {fact.value for fact in data.facts} >= {"example/tiny-llama", "0a1b2c3d" * 5, "fp8"}
    aside = {gate.name: gate.judgement.verdict for gate in data.gates if not gate.decides}
    assert set(aside) == {"accuracy, int8_smoothquant", "accuracy, int4_awq", "accuracy, int4_naive"}
    assert Verdict.NO_GO in aside.values()


def test_what_the_run_has_otherwise_than_its_config_is_told(begun: SampleRelease) -> None:
    document = begun.store.read_document(release_record_name(RELEASE))
    asked = {"overrides": {"recipes": ["fp8"], "revision": "v2"}, "overridden_by": "ann"}
    begun.store.write_document(release_record_name(RELEASE), {**document.value, **asked}, document.revision)
    data = begun.report()
    told = [fact.value for fact in data.facts if fact.label == "Changed for this run"]
    assert told == ["revision v2; recipes fp8, by ann"]
    assert "revision v2; recipes fp8, by ann" in render_report(data)


def test_a_release_that_its_canary_took_back_says_so_why_and_what_serves(tmp_path: Path) -> None:
    release = whole_release(tmp_path, good=False)
    release.point_at("before", "none")
    data = release.report()
    assert (data.headline.state, data.headline.verdict) == ("rolled back", Verdict.NO_GO)
    assert data.headline.sentence.startswith("Taken back on cpu at the 25 % step: Slow first tokens")
    assert data.headline.sentence.endswith("Recipe none of release before serves.")
    assert [event.kind for event in data.canaries["cpu"].events] == [
        "shifted",
        "shifted",
        "rolling back",
        "rolled back",
    ]
    shutil.rmtree(Path(urlsplit(release.store.uri).path) / "artifacts" / "canary")
    assert "Taken back on cpu: Slow first tokens" in release.headline().sentence
    release.fail("rollback", "cpu", StageCrashed("the router did not answer"))
    assert release.headline().state == "failed", "a failed rollback is never hidden"


def test_a_canary_tried_again_after_a_rollback_is_on_its_way_again(begun: SampleRelease) -> None:
    begun.add("rollback", "cpu", metrics={"phase": "rolled back", "traffic_confirmed": 0})
    assert begun.headline().state == "rolled back"
    assert "has not confirmed" in begun.headline().sentence
    begun.add("canary", "cpu:5", judgement=one_fact("errors, ratio to stable", 1.0, 2.0, "", 400))
    assert begun.headline().state == "on its way"


def test_a_release_is_replaced_by_another_one_but_not_where_its_very_repository_serves(tmp_path: Path) -> None:
    release = whole_release(tmp_path)
    production = read_place(release.store, "cpu").production
    package = release.store.read_document(f"releases/{RELEASE}/results/package.cpu.json").value
    same = {"release_id": "earlier", "repository": ArtifactRef.model_validate(package["artifacts"]["repository"])}
    serve(release.store, "example/tiny-llama", "cpu", production.model_copy(update=same))
    assert release.headline().state == "in production"
    assert "Release earlier had put the very same model repository there" in release.headline().sentence
    release.point_at("another", "fp8")
    assert release.headline().state == "replaced"


def test_recipes_give_no_verdict_while_they_are_tried_and_stop_a_release_if_none_passes(begun: SampleRelease) -> None:
    begun.measure_baseline()
    begun.try_recipes(["int4_awq"], choose=False)
    assert (begun.headline().state, begun.headline().verdict) == ("on its way", None)
    begun.try_recipes(["int4_naive"])
    assert (begun.headline().state, begun.headline().verdict) == ("stopped", Verdict.NO_GO)
    assert "No recipe passed its accuracy gate" in begun.headline().sentence


def test_a_damaged_baseline_is_the_headline_with_its_evidence_whatever_an_earlier_run_found(
    begun: SampleRelease,
) -> None:
    begun.measure_baseline()
    begun.try_recipes(["fp8"], choose=False)
    stated = ExpectedScore(minimum=0.93, maximum=0.97, source="model card, 2026-05")
    begun.add("baseline_gate", judgement=judge_baseline(begun.baseline, {"arithmetic": stated}, {}))
    data = begun.report()
    assert (data.headline.state, data.headline.verdict) == ("stopped", Verdict.ANOMALOUS)
    assert data.headline.sentence.startswith("Baseline gate: The baseline itself is wrong")
    text = render_report(data)
    assert "baseline gate" in text
    assert "model card" in text


def test_an_artifact_that_is_gone_or_a_result_that_cannot_be_read_is_a_gap_and_not_a_failure(tmp_path: Path) -> None:
    release = whole_release(tmp_path)
    root = Path(urlsplit(release.store.uri).path)
    shutil.rmtree(root / "artifacts" / "canary")
    shutil.rmtree(root / "artifacts" / "evaluation")
    for outcome in (root / "artifacts" / "load_test").rglob("load_test.json"):
        outcome.chmod(0o644)
        outcome.write_text("not a load test\n")
    release.store.write_document(f"releases/{RELEASE}/results/build.gpu.json", {"stage": "build"}, None)
    data = release.report()
    assert (data.canaries, data.loads) == ({}, ())
    for what in ("canary", "load_test", "build.gpu.json", "evaluation of accuracy fp8"):
        assert sum(what in gap for gap in data.gaps) == 1, data.gaps
    assert data.headline.state == "in production"


def test_what_is_staged_by_hand_is_where_stop_looks_for_it(promoted: SampleRelease, tmp_path: Path) -> None:
    here = load_yaml(Path(write_bare_deployment(tmp_path / "here.yaml", promoted.store.uri)), Deployment)
    flow = ReleaseProgress.open(here, RELEASE)
    assert flow.state_directory("cpu", "staging") == "/state/cpu/staging"
    assert flow.here(here).state_directory("cpu", "staging") == f"{tmp_path}/s/cpu/staging"


def test_the_headline_names_stage_error_place_and_advice(chosen: SampleRelease, tmp_path: Path) -> None:
    chosen.fail("build", "cpu", ERROR)
    assert (chosen.headline().state, chosen.headline().verdict) == ("failed", None)
    assert chosen.headline().sentence == (
        "Build, cpu failed: Unsupported: the engine needs 92 GiB, the device has 80 -> take an int4 recipe "
        "[targets/cpu.yaml] (docs/runbooks.md#unsupported)."
    )
    first = SampleRelease(tmp_path / "first")
    first.fail("download", "", StageCrashed("the process was killed"))
    told = "StageCrashed: the process was killed (docs/runbooks.md#stagecrashed)"
    assert f"Download failed: {told}." in first.headline().sentence
    assert f'(transient)</p>\n<p class="message">{told}</p>' in render_report(first.report())


def test_an_error_that_the_release_does_not_depend_on_is_told_and_stops_nothing(chosen: SampleRelease) -> None:
    chosen.fail("accuracy", "int4_awq", ERROR)
    chosen.fail("staging_down", "cpu", ERROR)
    data = chosen.report()
    assert data.headline.state == "on its way"
    assert (data.failures, len(data.asides)) == ((), 2)
    assert "Accuracy, int4_awq failed: Unsupported" in data.headline.sentence
    assert "1 more failed: staging down, cpu." in data.headline.sentence


def test_a_long_message_is_shortened_in_the_headline_and_whole_in_the_page(chosen: SampleRelease) -> None:
    chosen.fail("build", "cpu", Unsupported("line of a traceback <b>\n" * 40))
    data = chosen.report()
    assert len(data.headline.sentence) < 450
    html = render_report(data)
    assert html.count("line of a traceback &lt;b&gt;\n") == 40
    assert "<b>" not in html


@pytest.mark.parametrize(
    ("answer", "by", "state", "told"),
    [
        ("denied", "anna", "not approved", "Denied by anna, 2026-11-27 14:03 UTC."),
        ("timed out", "", "not approved", "Not answered in time, 2026-11-27"),
        ("waiting", "", "on its way", "Waiting for an answer."),
    ],
)
def test_a_release_that_nobody_approved_says_who_when_and_what_was_asked(
    chosen: SampleRelease, answer: str, by: str, state: str, told: str
) -> None:
    record = read_release_record(chosen.store, RELEASE)
    at = datetime(2026, 11, 27, 14, 3, tzinfo=UTC).timestamp() if answer != "waiting" else None
    asked = Decision(
        run=record.created_at.isoformat(), step="approve", targets=("cpu",), question="Promote it on cpu?",
        evidence="0" * 64, answer=answer, answered_at=at, by=by,
    )  # fmt: skip
    chosen.store.write_document(decision_name(RELEASE, "approve"), asked.model_dump(mode="json"), None)
    headline = chosen.headline()
    assert headline.state == state
    assert headline.sentence.startswith(told)
    assert headline.sentence.endswith("The question: Promote it on cpu?")
    if answer != "waiting":
        assert summarize(chosen.store, RELEASE).row.verdict == answer
    assert refusal([asked], record.created_at + timedelta(seconds=1)) is None  # another run asks anew
