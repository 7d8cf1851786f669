"""A canary in the report: its split, its evidence over time, its steps and its events, from the steps' artifacts."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from canary_sample import BEGAN_AT, CONTROLLER, SimulatedCanary

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.timeline import SUMMARY_FILE, write_timeline
from llm_pipeline.reporting.canary_plot import e_value, evidence_in_words
from llm_pipeline.reporting.collect import collect, read_canary
from llm_pipeline.reporting.html import render_report
from llm_pipeline.reporting.model import CanaryStudy


@pytest.fixture(scope="module")
def regressed(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The artifacts of a canary that is slow from 25 % on."""
    return SimulatedCanary(tmp_path_factory.mktemp("canary"), worse_from=25).run()


@pytest.fixture(scope="module")
def study(regressed: list[Path]) -> CanaryStudy:
    return read_canary(regressed, "cpu")


@pytest.fixture(scope="module")
def page(sample, study: CanaryStudy, tmp_path_factory: pytest.TempPathFactory) -> str:
    data = collect(sample.SampleRelease(tmp_path_factory.mktemp("release")).store, sample.RELEASE)
    return render_report(data.model_copy(update={"canaries": (study,)}))


def test_each_step_is_told_by_its_own_artifact_and_all_else_by_the_latest(study: CanaryStudy) -> None:
    assert [(step.percent, step.verdict) for step in study.steps] == [(5.0, Verdict.GO), (25.0, Verdict.NO_GO)]
    first, second = study.steps
    assert first.watched_seconds == pytest.approx(60.0)
    assert first.measured_percent == pytest.approx(5.0, abs=3.0)
    slow = next(metric for metric in second.metrics if metric.name.startswith("slow first token beyond"))
    assert slow.verdict is Verdict.NO_GO
    assert slow.e_value >= slow.regressed_at == pytest.approx(80.0)
    assert slow.candidate_events / slow.candidate_requests > slow.stable_events / slow.stable_requests


def test_a_step_of_an_earlier_attempt_is_not_told_as_one_of_the_latest(regressed: list[Path], tmp_path: Path) -> None:
    earlier = json.loads((regressed[0] / SUMMARY_FILE).read_text())
    (tmp_path / SUMMARY_FILE).write_text(json.dumps({**earlier, "began_at": BEGAN_AT - 3600.0}))
    assert [step.percent for step in read_canary([tmp_path, regressed[1]], "cpu").steps] == [25.0]


def test_the_page_shows_intended_and_measured_split_rates_and_evidence(page: str) -> None:
    for title in (
        "traffic to the candidate: intended, and measured as dots",
        "requests per second",
        "regressions: e-values, threshold 80",
        "wrong traffic split: e-value, threshold 1,000",
    ):
        assert f">{title}</text>" in page


def test_the_evidence_is_told_in_words(study: CanaryStudy) -> None:
    assert study.evidence is not None
    words = evidence_in_words(study.evidence)
    assert re.match(
        r"The strongest evidence against the candidate, slow first token, reached its threshold: "
        r"e-value [\d,]+, threshold 80\. ",
        words,
    )
    early = study.evidence.model_copy(update={"looks": study.evidence.looks[:5]})
    assert "did not reach its threshold" in evidence_in_words(early)


def test_events_stand_in_a_table_with_their_times_and_who_did_it(page: str, study: CanaryStudy) -> None:
    table = page[page.index("<strong>Events</strong>") :]
    rows = re.findall(r"<tr><td class=\"number\">(.*?)</tr>", table)
    texts = [re.sub(r"<[^>]+>|\s+", " ", row) for row in rows]
    kinds = ["started", "shifted", "step passed", "shifted", "rolling back", "rolled back"]
    assert len(texts) == len(study.events) == len(kinds)
    assert all(kind in text and CONTROLLER in text for kind, text in zip(kinds, texts, strict=True))
    assert texts[0].startswith("0.0 s")
    assert "11-21 09:01:15" in texts[2]
    assert "NO GO" in texts[4]


def test_the_steps_table_shows_every_metric_with_limits_and_verdicts(page: str, study: CanaryStudy) -> None:
    table = page[page.index("<strong>Steps</strong>") : page.index("<strong>Events</strong>")]
    assert table.count('<tbody class="gate">') == len(study.steps) == 2
    for step in study.steps:
        for metric in step.metrics:
            assert f'<td class="fact">{metric.name}</td>' in table
            assert f"{e_value(metric.e_value)} of {e_value(metric.regressed_at)}" in table
    assert table.count("NO GO") == 2  # of the step, and of the one metric that made it so


def test_a_canary_counted_by_another_source_is_told_without_its_requests(
    promoted_data, regressed: list[Path], tmp_path: Path
) -> None:
    canary = SimulatedCanary(tmp_path, worse_from=25)
    canary.run()
    write_timeline(tmp_path / "counted", canary.record, None)
    study = read_canary([regressed[0], tmp_path / "counted"], "cpu")
    assert study.samples == ()
    assert study.rollback is not None
    others = {"loads": (), "accuracy": (), "trials": (), "stages": ()}
    html = render_report(promoted_data.model_copy(update={"canaries": (study,), **others}))
    assert "Evidence over time, cpu" in html
    assert "requests per second" not in html
    assert html.count("NO GO") >= 2
