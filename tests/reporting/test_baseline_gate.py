"""A release that its own baseline stopped."""

from __future__ import annotations

from pathlib import Path

from llm_pipeline.accuracy.baseline_gate import judge_baseline
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.release import ExpectedScore
from llm_pipeline.reporting.collect import collect
from llm_pipeline.reporting.html import render_report


def test_a_damaged_baseline_is_the_headline_with_its_evidence(sample, tmp_path: Path) -> None:
    release = sample.SampleRelease(tmp_path)
    release.measure_baseline()
    stated = ExpectedScore(minimum=0.93, maximum=0.97, source="model card, 2026-05")
    judgement = judge_baseline(release.baseline, {"arithmetic": stated}, {})
    release.add("baseline_gate", judgement=judgement)
    data = collect(release.store, sample.RELEASE)
    assert (data.headline.state, data.headline.verdict) == ("stopped", Verdict.ANOMALOUS)
    assert data.headline.sentence.startswith("Baseline gate: The baseline itself is wrong")
    text = render_report(data)
    assert "baseline gate" in text
    assert "model card" in text


def test_a_baseline_that_was_refused_stays_so_beside_verdicts_of_an_earlier_run(sample, tmp_path: Path) -> None:
    release = sample.SampleRelease(tmp_path)
    release.measure_baseline()
    release.try_recipes(["fp8"], choose=False)
    assert collect(release.store, sample.RELEASE).headline.verdict is None
    stated = ExpectedScore(minimum=0.93, maximum=0.97, source="model card")
    release.add("baseline_gate", judgement=judge_baseline(release.baseline, {"arithmetic": stated}, {}))
    headline = collect(release.store, sample.RELEASE).headline
    assert (headline.state, headline.verdict) == ("stopped", Verdict.ANOMALOUS)
