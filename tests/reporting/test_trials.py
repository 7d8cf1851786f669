"""Every recipe is in the report: those that were judged with what was found, the others with the reason."""

from __future__ import annotations

import re

import pytest
from sample_release import SampleRelease

from llm_pipeline.accuracy.gate import LossSample
from llm_pipeline.base.errors import Unsupported
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.reporting.accuracy_plot import plot_pareto
from llm_pipeline.reporting.html import render_report
from llm_pipeline.reporting.model import ReportData, Trial


@pytest.fixture(scope="module")
def climbed(tmp_path_factory: pytest.TempPathFactory) -> ReportData:
    """The cheapest recipe could not be made, the next two were judged, and the last was not needed any more."""
    release = SampleRelease(tmp_path_factory.mktemp("climbed"), strategy="climb")
    release.measure_baseline()
    release.try_recipes(["int4_awq", "fp8"])
    release.fail("quantize", "int4_naive", Unsupported("3 bits cannot be reached", hint="ask for 4.5"))
    release.conclude("fp8")
    return release.report()


@pytest.fixture(scope="module")
def page(climbed: ReportData) -> str:
    return " ".join(render_report(climbed).split())


def trial(data: ReportData, name: str) -> Trial:
    return next(trial for trial in data.trials if trial.name == name)


def test_a_recipe_that_was_judged_shows_what_was_measured(climbed, page) -> None:
    fp8 = trial(climbed, "fp8")
    assert (fp8.verdict, fp8.outcome, fp8.chosen_on) == (Verdict.GO, "", ("cpu",))
    asked = fp8.evaluation
    assert (asked.asked, asked.planned, asked.look, asked.looks) == (2100, 2625, 4, 5)
    assert fp8.size_ratio == pytest.approx(0.525)
    for text in ("52.5 %", "of 2,625", "look 4 of 5", "4.5 bits"):
        assert text in page
    assert fp8.pooled is not None
    assert f"{fp8.pooled.lost} / {fp8.pooled.gained}" in page


def test_losses_are_shown_between_the_bounds_that_decided(climbed, page) -> None:
    """At the fourth of five looks they are wider than those of a sample of its size."""
    gate = next(gate for gate in climbed.gates if gate.name == "accuracy, fp8")
    bounds = {fact.name: (fact.lower, fact.upper) for fact in gate.judgement.evidence}
    (study,) = (study for study in climbed.accuracy if study.name == "fp8")
    for part in (study.comparison.pooled, *study.comparison.tasks):
        assert part.loss is not None
        assert bounds[f"accuracy loss, {part.name}"] == (part.loss.lower, part.loss.upper)
    pooled = trial(climbed, "fp8").pooled
    assert pooled == study.comparison.pooled
    assert pooled.loss is not None
    assert pooled.loss.upper > LossSample(pooled.lost, pooled.gained, pooled.pairs).upper(0.05)
    assert "hold at 95 % each, at all looks together" in page


def test_a_recipe_that_was_not_judged_says_why(climbed, page) -> None:
    assert trial(climbed, "int8_smoothquant").outcome == "skipped: a cheaper recipe passed (fp8)"
    failed = trial(climbed, "int4_naive")
    assert "Unsupported: 3 bits cannot be reached -> ask for 4.5 (docs/runbooks.md#unsupported)" in failed.outcome
    assert "skipped: a cheaper recipe passed (fp8)" in page
    assert "3 bits cannot be reached" in page


def test_the_pareto_plot_shows_the_recipes_that_were_judged_the_margin_and_the_baseline(promoted_data) -> None:
    plot = plot_pareto(promoted_data.trials, promoted_data.margin)
    for text in ("fp8 ✓", "int8_smoothquant", "baseline", "margin, +1.00", "checkpoint size, % of the baseline"):
        assert f">{text}</text>" in plot.svg
    assert re.search(r">int4_naive, \+5\d\.\d</text>", plot.svg)  # far beyond the axis: its number
    assert "fp8: 52 % of the baseline's size, " in plot.description
    assert "released on cpu" in plot.description
    for role in ("good", "bad", "unsure", "baseline"):
        assert f"var(--plot-{role})" in plot.svg


def test_targets_that_chose_differently_are_told_apart(begun: SampleRelease) -> None:
    begun.measure_baseline()
    begun.try_recipes()
    begun.add("choose", "gpu", metrics={"recipe": "int8_smoothquant"})
    data = begun.report()
    assert data.recipe == "recipe fp8 on cpu; int8_smoothquant on gpu"
    assert {one.name: one.chosen_on for one in data.trials if one.chosen_on} == {
        "fp8": ("cpu",),
        "int8_smoothquant": ("gpu",),
    }
