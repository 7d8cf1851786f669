"""The stage that judges the baseline: cheap to run again, and at ease with what older versions stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from resolved_release import request_below

from llm_pipeline.accuracy.evaluation import summarise, write_evaluation
from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.execute import execute
from llm_pipeline.store import ArtifactStore

CARD = {"arc": {"minimum": 0.93, "maximum": 0.97, "source": "model card, 2026-05"}}

Judge = Callable[..., StageResult]


def evaluation(store: ArtifactStore, tmp_path: Path, right: int) -> ArtifactRef:
    items = [
        ScoredItem(
            task="arc", item_id=n, fingerprint=f"{n}", score=float(n < right), generative=False, chance=0.25
        ) for n in range(1000)
    ]  # fmt: skip
    directory = tmp_path / f"evaluation {right}"
    write_evaluation(directory, items, summarise(items))
    return store.publish("evaluation", directory)


@pytest.fixture
def judge(store: ArtifactStore, tmp_path: Path) -> Judge:
    def run(expected: dict[str, object], **inputs: ArtifactRef) -> StageResult:
        config = {"expected": expected, "maximum_cut_share": 0.02}
        outcome = execute(request_below(tmp_path, "baseline_gate", config, inputs=inputs))
        assert isinstance(outcome, StageResult), outcome
        return outcome

    return run


def verdict(result: StageResult) -> Verdict:
    assert result.judgement is not None
    return result.judgement.verdict


def test_another_range_is_judged_from_the_items_that_are_there(store, tmp_path, judge: Judge) -> None:
    baseline = evaluation(store, tmp_path, 602)
    assert verdict(judge({}, baseline=baseline)) is Verdict.GO
    assert verdict(judge(CARD, baseline=baseline)) is Verdict.ANOMALOUS
    again = judge(CARD, baseline=baseline)
    assert (again.reused, verdict(again)) == (True, Verdict.ANOMALOUS)
    assert not again.artifacts


def test_the_verdict_and_its_table_are_in_the_log(store, tmp_path, judge: Judge, caplog) -> None:
    judge(CARD, baseline=evaluation(store, tmp_path, 602))
    for text in ("ANOMALOUS: ", "score, arc", "60.20 %", "93.00 %", "model card, 2026-05"):
        assert text in caplog.text


def test_a_baseline_far_worse_than_what_production_was_compared_with_is_anomalous(store, tmp_path, judge) -> None:
    production = evaluation(store, tmp_path, 950)
    result = judge({}, baseline=evaluation(store, tmp_path, 602), production=production)
    assert verdict(result) is Verdict.ANOMALOUS
    assert result.judgement is not None
    assert "loss since production, arc" in result.judgement.summary


def test_what_production_was_scored_by_otherwise_is_not_compared(store, tmp_path, judge: Judge) -> None:
    evaluation(store, tmp_path, 950)
    path = tmp_path / "evaluation 950" / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"harness": {"score of arc": "acc, none"}}))
    production = store.publish("evaluation", tmp_path / "evaluation 950")
    assert verdict(judge({}, baseline=evaluation(store, tmp_path, 602), production=production)) is Verdict.GO
