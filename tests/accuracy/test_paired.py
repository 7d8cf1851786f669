"""Pairing two evaluations."""

from __future__ import annotations

import pytest

from llm_pipeline.accuracy.paired import POOLED, Comparison, compare, pair_items
from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.base.errors import IntegrityError


def item(number: int, score: float | None, task: str = "a") -> ScoredItem:
    return ScoredItem(task=task, item_id=number, fingerprint=f"{task}{number}", score=score, generative=True)


def test_flips_are_counted_by_direction_and_only_on_pairs() -> None:
    before = [item(0, 1.0), item(1, 1.0), item(2, 0.0), item(3, 0.0), item(4, 1.0), item(5, None)]
    after = [item(0, 0.0), item(1, 1.0), item(2, 1.0), item(3, 0.0), item(5, 1.0), item(6, 1.0)]
    (task,) = compare(before, after, 0.95).tasks
    assert (task.pairs, task.lost, task.gained, task.flips, task.unpaired) == (4, 1, 1, 2, 3)


def test_accuracies_and_loss_are_over_the_same_items() -> None:
    before = [item(0, 1.0), item(1, 1.0), item(2, 0.0), item(3, 1.0)]
    after = [item(0, 0.0), item(1, 1.0), item(2, 0.0)]
    pooled = compare(before, after, 0.95).pooled
    assert pooled.baseline is not None
    assert pooled.candidate is not None
    assert pooled.loss is not None
    assert pooled.loss.estimate == pooled.baseline.estimate - pooled.candidate.estimate == 1 / 3


def test_equal_numbers_of_different_tasks_are_different_items() -> None:
    before = [item(0, 1.0), item(0, 1.0, "b")]
    after = [item(0, 1.0), item(0, 0.0, "b")]
    comparison = compare(before, after, 0.95)
    assert [(task.name, task.lost) for task in comparison.tasks] == [("a", 0), ("b", 1)]
    assert (comparison.pooled.name, comparison.pooled.pairs) == (POOLED, 2)


def test_one_graded_score_makes_the_task_graded() -> None:
    (task,) = pair_items([item(0, 1.0), item(1, 0.5)], [item(0, 1.0), item(1, 0.25)])
    assert task.sample.graded
    assert task.sample.lost == 1


def test_a_comparison_survives_json() -> None:
    comparison = compare([item(0, 1.0), item(1, 0.0)], [item(0, 0.0), item(1, None)], 0.95)
    assert Comparison.model_validate_json(comparison.model_dump_json()) == comparison


def test_what_was_not_asked_is_left_out_and_what_was_asked_and_is_missing_is_unpaired() -> None:
    before = [item(number, 1.0) for number in range(6)]
    after = [item(0, 1.0), item(2, 0.0)]
    (task,) = compare(before, after, 0.95, asked={("a", 0), ("a", 2), ("a", 3), ("a", 9)}).tasks
    assert (task.pairs, task.lost, task.unpaired) == (2, 1, 2)


def test_a_task_of_which_nothing_was_asked_stays_without_pairs() -> None:
    before = [item(0, 1.0), item(0, 1.0, "b")]
    comparison = compare(before, [item(0, 1.0)], 0.95, asked={("a", 0)})
    assert [(task.name, task.pairs, task.unpaired) for task in comparison.tasks] == [("a", 1, 0), ("b", 0, 0)]


def test_an_answer_to_what_was_not_asked_is_refused() -> None:
    with pytest.raises(IntegrityError, match="1 items of task a were not asked"):
        compare([item(0, 1.0), item(1, 1.0)], [item(0, 1.0), item(1, 1.0)], 0.95, asked={("a", 0)})


def test_equal_cluster_names_of_two_tasks_are_different_clusters() -> None:
    def clustered(task: str) -> list[ScoredItem]:
        return [item(number, 1.0, task).model_copy(update={"cluster": f"c{number // 2}"}) for number in range(6)]

    comparison = compare([*clustered("a"), *clustered("b")], [*clustered("a"), *clustered("b")], 0.95)
    assert [task.clusters for task in comparison.tasks] == [3, 3]
    assert comparison.pooled.clusters == 6
