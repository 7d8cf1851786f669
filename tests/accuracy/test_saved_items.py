from __future__ import annotations

import pytest

from llm_pipeline.accuracy.item_runner import SavedItems
from llm_pipeline.artifacts.items import ScoredItem

ORDER = [("a", 2), ("b", 0), ("a", 0), ("a", 1)]
ITEMS = [ScoredItem(task=t, item_id=n, fingerprint=f"{t}{n}", score=1.0, generative=False) for t, n in ORDER]


@pytest.fixture
def directory(tmp_path):
    saved = SavedItems(tmp_path, "evaluation one")
    saved.append(ITEMS[:2])
    saved.append(ITEMS[2:3])
    return tmp_path


def read(directory, evaluation="evaluation one", order=ORDER):
    return SavedItems(directory, evaluation).read(order)


def test_what_was_saved_is_taken_up_and_gone_on_with(directory):
    saved = SavedItems(directory, "evaluation one")
    assert saved.read(ORDER) == ITEMS[:3]
    saved.append(ITEMS[3:])
    assert read(directory) == ITEMS


@pytest.mark.parametrize("kept", [0, 10, 100, -1])
def test_a_torn_file_and_all_after_it_are_thrown_away(directory, kept):
    first = directory / "000000.jsonl"
    first.write_bytes(first.read_bytes()[:kept])
    assert read(directory) == []
    assert list(directory.iterdir()) == []


def test_a_changed_score_is_not_believed(directory):
    second = directory / "000001.jsonl"
    second.write_text(second.read_text().replace('"score":1.0', '"score":0.0'))
    assert read(directory) == ITEMS[:2]


def test_a_write_that_was_cut_short_leaves_nothing_to_believe(directory):
    (directory / "000002.part").write_text("{")
    assert read(directory) == ITEMS[:3]


def test_items_of_another_evaluation_or_order_are_thrown_away(directory):
    assert read(directory, order=[ORDER[1], ORDER[0], *ORDER[2:]]) == []
    SavedItems(directory, "evaluation one").append(ITEMS[:2])
    assert read(directory, evaluation="evaluation two") == []


def test_an_answer_may_hold_any_kind_of_line_break(tmp_path):
    item = ITEMS[0].model_copy(update={"completion": "one\ntwo\r\nthree\u2028four\x85five\x0csix"})
    SavedItems(tmp_path, "evaluation one").append([item, *ITEMS[1:2]])
    assert read(tmp_path) == [item, *ITEMS[1:2]]
