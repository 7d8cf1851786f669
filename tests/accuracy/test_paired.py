"""Pairing two evaluations."""

from __future__ import annotations

from llm_pipeline.accuracy.items import ScoredItem
from llm_pipeline.accuracy.paired import POOLED, Comparison, compare


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
    comparison = compare([item(0, 1.0), item(1, 0.5)], [item(0, 1.0), item(1, 0.25)], 0.95)
    assert comparison.tasks[0].graded
    assert comparison.tasks[0].lost == 1


def test_a_comparison_survives_json() -> None:
    comparison = compare([item(0, 1.0), item(1, 0.0)], [item(0, 0.0), item(1, None)], 0.95)
    assert Comparison.model_validate_json(comparison.model_dump_json()) == comparison
