"""A canary in the report: its split, its evidence over time, its steps and its events, from the steps' artifacts."""

from __future__ import annotations

import json
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from canary_sample import BEGAN_AT, CONTROLLER, POLICY, SimulatedCanary

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.analysis import MOST_LOOKS, with_look
from llm_pipeline.canary.timeline import SUMMARY_FILE, ArmPoint, TimelinePoint, read_timeline, write_timeline
from llm_pipeline.reporting.canary_plot import e_value, evidence_in_words, measured_split
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


def test_the_timeline_keeps_the_e_values_that_decided(regressed: list[Path]) -> None:
    summary, _ = read_timeline(regressed[-1])
    evidence, step = summary.evidence, summary.step
    assert evidence is not None
    assert step is not None
    at = evidence.metrics.index("slow first token")
    assert evidence.looks[-1].regressed[at] == pytest.approx(step.metrics[at].e_value, rel=0.01)
    assert evidence.looks[-1].regressed[at] >= evidence.regressed_at
    assert all(look.regressed[at] < evidence.regressed_at for look in evidence.looks[:-1])
    assert evidence.looks[0].at == pytest.approx(17.0)


def test_a_long_canary_keeps_few_looks_over_all_of_its_time(regressed: list[Path], tmp_path: Path) -> None:
    state = SimulatedCanary(tmp_path).record.analysis
    assert state is not None
    looks: tuple = ()
    for second in range(5000):
        looks = with_look(looks, state, at=float(second), percent=5.0 if second < 700 else 25.0)
        assert len(looks) <= MOST_LOOKS
    moments = [look.at for look in looks]
    assert (moments[0], moments[-1]) == (0.0, 4999.0)
    assert 699.0 in moments  # the last look of a step decided it
    assert len(looks) > MOST_LOOKS / 3
    assert max(after - before for before, after in pairwise(moments)) < 5000 / MOST_LOOKS * 6


def test_the_measured_split_is_taken_within_steps_only() -> None:
    def at(second: int, percent: float, mine: int, others: int) -> TimelinePoint:
        stable, canary = ArmPoint(requests=others, errors=0), ArmPoint(requests=mine, errors=0)
        return TimelinePoint(at_seconds=second, intended_share=percent / 100, stable=stable, candidate=canary)

    samples = [at(0, 0.0, 0, 10), at(1, 50.0, 4, 6), at(2, 50.0, 0, 0), at(3, 100.0, 9, 0)]
    assert list(measured_split(samples)) == [(0.5, 0.0), (1.5, 40.0), (3.5, 100.0)]
    many = [at(second, 25.0 if second < 100 else 50.0, 1, 3) for second in range(200)]
    measured = list(measured_split(many))
    assert len(measured) <= 50
    assert {share for _, share in measured} == {25.0}


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


def test_a_canary_that_kept_no_evidence_is_shown_without(promoted_data, promoted_page) -> None:
    assert promoted_data.canaries[0].evidence is None
    html = promoted_page[promoted_page.index("<h2>Canary, cpu</h2>") :]
    assert "requests per second" in html
    assert "Evidence over time" not in html


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


def test_a_good_canary_reaches_no_threshold(tmp_path: Path) -> None:
    good = read_canary(SimulatedCanary(tmp_path).run(), "cpu")
    assert [step.percent for step in good.steps] == list(POLICY.steps_percent)
    assert good.evidence is not None
    for look in good.evidence.looks:
        assert max(look.regressed) < good.evidence.regressed_at
