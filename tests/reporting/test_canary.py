"""A canary in the report: its split, its evidence over time, its steps and its events."""

from __future__ import annotations

import re

import pytest
from sample_release import CONTROLLER, SampleRelease

from llm_pipeline.canary.analysis import Look
from llm_pipeline.canary.timeline import CanarySummary, EvidenceSeries
from llm_pipeline.reporting.canary_plot import evidence_in_words
from llm_pipeline.reporting.html import render_report

METRICS = ("failed answers", "slow first token", "slow end", "empty or cut answers")


@pytest.fixture(scope="module")
def study(rolled_back: SampleRelease) -> CanarySummary:
    """A canary that is slow at 25 %, with its evidence."""
    study = rolled_back.report().canaries["cpu"]
    looks = [
        Look(at=float(at), percent=25.0, regressed=(0.7, 1.5 ** max(0, at - 20), 1.0, 1.0), split=1.0)
        for at in range(0, 40, 2)
    ]
    evidence = EvidenceSeries(metrics=METRICS, regressed_at=80.0, split_wrong_at=1000.0, looks=tuple(looks))
    return study.model_copy(update={"evidence": evidence})


@pytest.fixture(scope="module")
def page(study: CanarySummary, tmp_path_factory: pytest.TempPathFactory) -> str:
    data = SampleRelease(tmp_path_factory.mktemp("release")).report()
    return render_report(data.model_copy(update={"canaries": {"cpu": study}}))


def test_the_page_shows_intended_and_measured_split_rates_and_evidence(page: str) -> None:
    for title in (
        "traffic to the candidate: intended, and measured as dots",
        "requests per second",
        "regressions: e-values, threshold 80",
        "wrong traffic split: e-value, threshold 1,000",
    ):
        assert f">{title}</text>" in page


def test_the_evidence_is_told_in_words(study: CanarySummary) -> None:
    told = "The strongest evidence against the candidate, slow first token, reached its threshold: "
    assert re.match(rf"{told}e-value [\d,]+, threshold 80\. ", evidence_in_words(study.evidence))
    early = study.evidence.model_copy(update={"looks": study.evidence.looks[:5]})
    assert "did not reach its threshold" in evidence_in_words(early)


def test_events_stand_in_a_table_with_their_times_and_who_did_it(page: str, study: CanarySummary) -> None:
    table = page[page.index("<strong>Events</strong>") :]
    rows = re.findall(r"<tr><td class=\"number\">(.*?)</tr>", table)
    texts = [re.sub(r"<[^>]+>|\s+", " ", row) for row in rows]
    kinds = ["shifted", "shifted", "rolling back", "rolled back"]
    assert len(texts) == len(study.events) == len(kinds)
    assert all(kind in text and CONTROLLER in text for kind, text in zip(kinds, texts, strict=True))
    assert texts[0].startswith("0.0 s")
    assert re.search(r"11-20 \d\d:\d\d:\d\d", texts[1])
    assert "NO GO" in texts[2]


def test_a_canary_counted_by_another_source_is_told_without_its_requests(promoted_data, study: CanarySummary) -> None:
    others = {"loads": (), "accuracy": (), "trials": (), "stages": ()}
    counted = study.model_copy(update={"points": ()})
    html = render_report(promoted_data.model_copy(update={"canaries": {"cpu": counted}, **others}))
    assert "Evidence over time, cpu" in html
    assert "requests per second" not in html
