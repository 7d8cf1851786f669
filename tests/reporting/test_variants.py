"""What a release's size and speed are compared with, and how that is labelled."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_pipeline.reporting.collect import collect
from llm_pipeline.reporting.html import render_report
from llm_pipeline.reporting.model import EngineSpeed, ReportData, Variant
from llm_pipeline.reporting.variants_plot import plot_variants


@pytest.fixture
def release(sample, tmp_path: Path):
    """A release that has built its engine."""
    written = sample.SampleRelease(tmp_path)
    written.measure_baseline()
    written.try_recipes()
    written.build()
    return written


def row(data: ReportData, name: str) -> Variant:
    return next(variant for variant in data.variants if variant.name == name)


def test_the_speed_is_the_builds_own_measurement_and_not_the_load_tests(sample, release) -> None:
    release.load_test()
    (engine,) = row(collect(release.store, sample.RELEASE), "fp8").engines
    assert (engine.single_stream, engine.batched, engine.sequences) == (118.5, 1204.0, 16)


def test_recipes_that_were_not_chosen_were_not_built(sample, release) -> None:
    data = collect(release.store, sample.RELEASE)
    assert row(data, "int4_awq").engines == row(data, "baseline (none)").engines == ()
    assert ">not built</text>" in render_report(data)


def test_a_build_without_a_measurement_is_not_shown_as_zero() -> None:
    variant = Variant(name="fp8", bytes=10, chosen=True, engines=(EngineSpeed(target="cpu"),))
    plot = plot_variants([variant])
    assert ">not measured</text>" in plot.svg
    assert "was not measured" in plot.description


def test_the_baseline_is_what_was_in_production_before_when_that_was_unquantized(sample, release) -> None:
    sample.other_release(release, "first", "none", (90.0, 800.0))
    sample.point_at(release, (sample.RELEASE, "fp8"), ("first", "none"))
    baseline = row(collect(release.store, sample.RELEASE), "baseline (none)")
    assert baseline.origin == "in production before: release first"
    assert [(engine.single_stream, engine.batched) for engine in baseline.engines] == [(90.0, 800.0)]


def test_a_quantized_version_in_production_before_has_a_row_of_its_own(sample, release) -> None:
    sample.other_release(release, "first", "none", (90.0, 800.0))
    sample.other_release(release, "second", "int4_awq", (200.0, 900.0), hours_earlier=2)
    sample.point_at(release, ("second", "int4_awq"), ("first", "none"))
    data = collect(release.store, sample.RELEASE)
    before = row(data, "int4_awq, in production before")
    assert (before.origin, before.is_reference) == ("release second", True)


def test_a_measurement_on_another_device_says_so(sample, release) -> None:
    sample.other_release(release, "first", "none", (90.0, 800.0))
    sample.point_at(release, (sample.RELEASE, "fp8"), ("first", "none"))
    name = "releases/first/results/build.cpu.json"
    document = release.store.read_document(name)
    metrics = {**document.value["metrics"], "device": "Faster CPU"}
    release.store.write_document(name, {**document.value, "metrics": metrics}, document.revision)
    data = collect(release.store, sample.RELEASE)
    assert row(data, "baseline (none)").origin == "in production before: release first, measured on Faster CPU"
    assert not any("of the baseline" in figure.note for figure in data.highlights if "Engine" in figure.label)
    assert "measured on Faster CPU." in render_report(data)
