"""What a report holds, for releases that got far and for those that did not."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import urlsplit

import yaml
from place_here import serve

from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.release.record import release_record_name
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.reporting.collect import collect
from llm_pipeline.reporting.html import render_report
from llm_pipeline.store.place_state import read_place


def test_a_promoted_release_is_in_production_with_every_part(sample, promoted) -> None:
    data = collect(promoted.store, sample.RELEASE)
    assert (data.headline.state, data.headline.verdict) == ("in production", Verdict.GO)
    assert "Recipe fp8 serves on cpu." in data.headline.sentence
    assert data.gaps == ()
    assert [(one.name, one.chosen_on) for one in data.trials if one.chosen_on] == [("fp8", ("cpu",))]
    assert [study.name for study in data.accuracy] == [*sample.RECIPES, "served on cpu"]
    assert len(data.loads) == len(data.canaries) == 1
    (read,) = data.evaluation_data
    assert (read.repository, read.files) == ("openai/gsm8k", 2)
    assert {fact.value for fact in data.facts} >= {"example/tiny-llama", "0a1b2c3d" * 5, "fp8"}


def test_what_the_run_has_otherwise_than_its_config_is_told(sample, tmp_path: Path) -> None:
    store = sample.SampleRelease(tmp_path).store
    document = store.read_document(release_record_name(sample.RELEASE))
    asked = {"overrides": {"recipes": ["fp8"], "revision": "v2"}, "overridden_by": "ann"}
    store.write_document(release_record_name(sample.RELEASE), {**document.value, **asked}, document.revision)
    data = collect(store, sample.RELEASE)
    told = [fact.value for fact in data.facts if fact.label == "Changed for this run"]
    assert told == ["revision v2; recipes fp8, by ann"]
    assert "revision v2; recipes fp8, by ann" in render_report(data)


def test_recipes_that_were_not_released_do_not_decide(sample, promoted) -> None:
    data = collect(promoted.store, sample.RELEASE)
    aside = {gate.name: gate.judgement.verdict for gate in data.gates if not gate.decides}
    assert set(aside) == {"accuracy, int8_smoothquant", "accuracy, int4_awq", "accuracy, int4_naive"}
    assert Verdict.NO_GO in aside.values()


def test_a_release_that_its_canary_took_back_says_so_and_why(sample, rolled_back) -> None:
    data = collect(rolled_back.store, sample.RELEASE)
    assert (data.headline.state, data.headline.verdict) == ("rolled back", Verdict.NO_GO)
    assert data.headline.sentence.startswith("Taken back on cpu at the 25 % step: Slow first tokens")
    kinds = [event.kind for event in data.canaries[0].events]
    assert kinds == ["shifted", "shifted", "rolling back", "rolled back"]


def test_a_canary_tried_again_after_a_rollback_is_on_its_way_again(sample, tmp_path: Path) -> None:
    release = sample.SampleRelease(tmp_path)
    release.add("rollback", "cpu", metrics={"phase": "rolled back"})
    assert collect(release.store, sample.RELEASE).headline.state == "rolled back"
    release.add("canary", "cpu:5", judgement=sample._one("errors, ratio to stable", 1.0, 2.0, "", 400))
    assert collect(release.store, sample.RELEASE).headline.state == "on its way"


def test_a_release_that_another_one_followed_is_replaced(sample, tmp_path: Path) -> None:
    release = sample.whole_release(tmp_path)
    pointers = read_place(release.store, "cpu")
    assert pointers.production is not None
    newer = pointers.production.model_copy(update={"release_id": "another"})
    serve(release.store, "example/tiny-llama", "cpu", newer)
    assert collect(release.store, sample.RELEASE).headline.state == "replaced"


def test_a_release_whose_very_repository_serves_already_is_in_production(sample, tmp_path: Path) -> None:
    release = sample.whole_release(tmp_path)
    pointers = read_place(release.store, "cpu")
    package = release.store.read_document(f"releases/{sample.RELEASE}/results/package.cpu.json").value
    assert pointers.production is not None
    same = {"release_id": "earlier", "repository": ArtifactRef.model_validate(package["artifacts"]["repository"])}
    production = pointers.production.model_copy(update=same)
    serve(release.store, "example/tiny-llama", "cpu", production)
    headline = collect(release.store, sample.RELEASE).headline
    assert headline.state == "in production"
    assert "Release earlier had put the very same model repository there" in headline.sentence


def test_recipes_still_being_tried_give_no_verdict_yet(sample, tmp_path: Path) -> None:
    release = sample.SampleRelease(tmp_path)
    release.measure_baseline()
    release.try_recipes(["int4_awq"], choose=False)
    data = collect(release.store, sample.RELEASE)
    assert (data.headline.state, data.headline.verdict) == ("on its way", None)


def test_a_release_without_a_passing_recipe_is_stopped(sample, tmp_path: Path) -> None:
    release = sample.SampleRelease(tmp_path)
    release.measure_baseline()
    release.try_recipes(["int4_awq", "int4_naive"])
    data = collect(release.store, sample.RELEASE)
    assert (data.headline.state, data.headline.verdict) == ("stopped", Verdict.NO_GO)
    assert "No recipe passed its accuracy gate" in data.headline.sentence


def test_an_artifact_that_is_gone_is_a_gap_and_not_a_failure(sample, tmp_path: Path) -> None:
    release = sample.whole_release(tmp_path)
    root = Path(urlsplit(release.store.uri).path)
    shutil.rmtree(root / "artifacts" / "canary")
    for outcome in (root / "artifacts" / "load_test").rglob("load_test.json"):
        outcome.chmod(0o644)
        outcome.write_text("not a load test\n")
    data = collect(release.store, sample.RELEASE)
    assert data.canaries == data.loads == ()
    assert any("canary" in gap for gap in data.gaps)
    assert any("load_test" in gap for gap in data.gaps)
    assert data.headline.state == "in production"


def test_a_result_that_cannot_be_read_is_a_gap(sample, tmp_path: Path) -> None:
    release = sample.SampleRelease(tmp_path)
    release.store.write_document(f"releases/{sample.RELEASE}/results/build.cpu.json", {"stage": "build"}, None)
    assert any("build.cpu.json" in gap for gap in collect(release.store, sample.RELEASE).gaps)


def test_what_is_staged_by_hand_is_where_stop_looks_for_it(sample, promoted, tmp_path) -> None:
    settings = {
        "store": promoted.store.uri,
        "work_root": "w",
        "state_root": "s",
        "environments": {},
        "triton_home": "t",
    }
    (tmp_path / "here.yaml").write_text(yaml.safe_dump(settings))
    here = load_yaml(tmp_path / "here.yaml", Deployment)
    flow = ReleaseProgress.open(here, sample.RELEASE)
    assert flow.state_directory("cpu", "staging") == "/s/cpu/staging"
    assert flow.here(here).state_directory("cpu", "staging") == f"{tmp_path}/s/cpu/staging"
