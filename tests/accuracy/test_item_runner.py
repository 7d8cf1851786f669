from __future__ import annotations

import logging

import pytest

from llm_pipeline.accuracy import item_runner as module
from llm_pipeline.accuracy.item_runner import ItemRunner, SavedItems
from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.base.progress import Progress
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.policy import AccuracyPolicy

POLICY = AccuracyPolicy(margin=0.02, task_margin=0.02, minimum_items=100)
ORDER = [("a", number) for number in range(1000)]
PORTIONS = [ORDER[start : start + 250] for start in range(0, 1000, 250)]


def scored(place, right):
    return ScoredItem(task=place[0], item_id=place[1], fingerprint=str(place), score=float(right), generative=False)


BASELINE = [scored(place, place[1] % 10 > 0) for place in ORDER]


class Questions:
    """Stands in for the harness; a killed process is an exception at a place."""

    def __init__(self, right=lambda number: number % 10 > 0, killed_at=None):
        self.right, self.killed_at, self.portions = right, killed_at, []

    def instances(self, order):
        return list(order)

    def ask(self, _model, order):
        if self.killed_at in {number for _, number in order}:
            raise KeyboardInterrupt
        self.portions.append(len(order))
        return [scored(place, self.right(place[1])) for place in order]


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PORTION_ITEMS", 100)
    return lambda questions: ItemRunner(
        questions, None, ORDER, SavedItems(tmp_path, "one"), Progress("evaluating", len(ORDER), "requests")
    )


def test_a_lossless_candidate_is_not_asked_everything(start):
    asking = start(questions := Questions())
    judgement, look = asking.ask_until_decided(BASELINE, PORTIONS, POLICY, {})
    assert judgement.verdict is Verdict.GO
    assert len(asking.items) == 250 * look < 1000
    assert questions.portions[:3] == [100, 100, 50]


def test_a_broken_candidate_stops_at_the_first_look(start):
    asking = start(Questions(right=lambda _: False))
    judgement, look = asking.ask_until_decided(BASELINE, PORTIONS, POLICY, {})
    assert (judgement.verdict, look, len(asking.items)) == (Verdict.NO_GO, 1, 250)


def test_one_fixed_look_asks_everything(start):
    asking = start(Questions())
    judgement, look = asking.ask_until_decided(BASELINE, [ORDER], POLICY, {})
    assert (judgement.verdict, look, len(asking.items)) == (Verdict.GO, 1, 1000)


def test_a_killed_evaluation_goes_on_with_the_portion_that_was_lost(start):
    with pytest.raises(KeyboardInterrupt):
        start(Questions(killed_at=320)).ask_until(1000)
    asking = start(questions := Questions())
    assert len(asking.items) == 300
    asking.ask_until(1000)
    assert sum(questions.portions) == asking.asked == 700
    assert asking.items == BASELINE


def test_progress_says_how_much_is_left_and_not_too_often(caplog):
    seconds = iter([0.0, 1.0, 9.0, 20.0, 21.0])
    progress = Progress("evaluating", 1000, "requests", clock=lambda: next(seconds))
    progress.skip(100)
    with caplog.at_level(logging.INFO):
        for _ in range(4):
            progress.advance(100)
    assert [record.getMessage() for record in caplog.records] == ["evaluating: 400 of 1,000 requests"]
    assert caplog.records[0].llm_pipeline_fields == {"per_second": 15.0, "seconds_left_at_most": 40}


def test_progress_is_logged_every_ten_seconds_and_at_the_end(caplog):
    now = 0.0
    caplog.set_level(logging.INFO)
    progress = Progress("calibration", 10, "batches", clock=lambda: now)
    for _ in range(10):
        now += 4.0
        progress.advance()
    left = [record.llm_pipeline_fields["seconds_left_at_most"] for record in caplog.records]
    assert [record.getMessage() for record in caplog.records] == [
        f"calibration: {done} of 10 batches" for done in (3, 6, 9, 10)
    ]
    assert left == [28, 16, 4, 0]
