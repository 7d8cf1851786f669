"""A canary in the report: its split, its evidence over time, its steps and its events, from the steps' artifacts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from canary_sample import CONTROLLER, SimulatedCanary
from sample_release import SampleRelease

from llm_pipeline.canary.timeline import write_timeline
from llm_pipeline.reporting.canary_plot import evidence_in_words
from llm_pipeline.reporting.collect import read_canary
from llm_pipeline.reporting.html import render_report
from llm_pipeline.reporting.model import CanaryStudy


@pytest.fixture(scope="module")
def regressed(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The artifacts of a canary that is slow from 25 % on."""
    return SimulatedCanary(tmp_path_factory.mktemp("canary"), worse_from=25).run()


@pytest.fixture(scope="module")
def study(regressed: list[Path]) -> CanaryStudy:
    return read_canary(regressed[-1], "cpu")


@pytest.fixture(scope="module")
def page(study: CanaryStudy, tmp_path_factory: pytest.TempPathFactory) -> str:
    data = SampleRelease(tmp_path_factory.mktemp("release")).report()
    return render_report(data.model_copy(update={"canaries": (study,)}))


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


def test_a_canary_counted_by_another_source_is_told_without_its_requests(
    promoted_data, regressed: list[Path], tmp_path: Path
) -> None:
    canary = SimulatedCanary(tmp_path, worse_from=25)
    canary.run()
    write_timeline(tmp_path / "counted", canary.record, None)
    study = read_canary(tmp_path / "counted", "cpu")
    assert study.samples == ()
    assert study.rollback is not None
    others = {"loads": (), "accuracy": (), "trials": (), "stages": ()}
    html = render_report(promoted_data.model_copy(update={"canaries": (study,), **others}))
    assert "Evidence over time, cpu" in html
    assert "requests per second" not in html
    assert html.count("NO GO") >= 2
