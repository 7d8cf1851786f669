"""In which order items are asked, and when the gate looks."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_pipeline.accuracy.looks import LookPlan, evaluation_order
from llm_pipeline.accuracy.rehearsal import plan_looks
from llm_pipeline.config.policy import AccuracyPolicy

POLICY = AccuracyPolicy(minimum_items=500, looks=5, method="group_sequential")
CLUSTERS = st.lists(st.sampled_from(["", "a", "b", "c", "d"]), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(["gsm8k", "mmlu", "code"]), CLUSTERS, max_size=3), st.integers(0, 9))
def test_every_item_is_asked_once_and_clusters_stay_together(tasks: dict[str, list[str]], seed: int) -> None:
    order = evaluation_order(tasks, seed)
    assert sorted(order) == sorted((task, number) for task, own in tasks.items() for number in range(len(own)))
    for task, own in tasks.items():
        met = [own[number] for name, number in order if name == task and own[number]]
        runs = sum(1 for at, cluster in enumerate(met) if at == 0 or met[at - 1] != cluster)
        assert runs == len(set(met))


def test_every_part_from_the_start_holds_the_tasks_in_proportion() -> None:
    order = evaluation_order({"large": [""] * 3000, "small": [""] * 600}, seed=1)
    for size in (36, 360, 1800, 3000):
        seen = Counter(task for task, _ in order[:size])
        assert seen["small"] == pytest.approx(size / 6, abs=2)


def test_the_order_is_the_seeds_and_the_tasks_own() -> None:
    tasks = {"a": [""] * 200, "b": [""] * 300}
    assert evaluation_order(tasks, 1) == evaluation_order(tasks, 1) != evaluation_order(tasks, 2)
    alone = evaluation_order({"a": [""] * 200}, 1)
    assert [item for item in evaluation_order(tasks, 1) if item[0] == "a"] == list(alone)
    assert [number for _, number in alone] != sorted(number for _, number in alone)


def test_looks_are_evenly_spaced_and_none_is_below_the_smallest_sample() -> None:
    assert plan_looks({"a": 3000, "b": 1300}, POLICY).sizes == (860, 1720, 2580, 3440, 4300)
    assert plan_looks({"a": 1500}, POLICY).sizes == (500, 750, 1000, 1250, 1500)


def test_no_more_is_asked_than_the_policy_allows() -> None:
    assert plan_looks({"a": 5000}, POLICY.model_copy(update={"maximum_items": 1000})).items == 1000


@pytest.mark.parametrize("items", [0, 1, 499, 500, 501])
def test_a_pool_that_is_hardly_enough_is_looked_at_once_or_twice(items: int) -> None:
    for method in ("fixed", "group_sequential", "e_value", "auto"):
        plan = plan_looks({"a": items}, POLICY.model_copy(update={"method": method}))
        assert plan.items == items
        assert len(plan.sizes) <= 2


def test_a_fixed_sample_is_looked_at_once() -> None:
    assert plan_looks({"a": 4300}, POLICY.model_copy(update={"method": "fixed"})) == LookPlan("fixed", (4300,))


def test_a_pool_much_larger_than_needed_is_bet_on() -> None:
    auto = POLICY.model_copy(update={"method": "auto"})
    assert plan_looks({"a": 4300}, auto).method == "group_sequential"
    plan = plan_looks({"mmlu": 14_042}, auto)
    assert plan.method == "e_value"
    assert plan.sizes[0] == 500
    assert all(later / sooner < 1.2 for sooner, later in zip(plan.sizes, plan.sizes[1:], strict=False))


@pytest.mark.parametrize("method", ["auto", "e_value"])
def test_nothing_is_bet_on_scores_without_bounds(method: str) -> None:
    policy = POLICY.model_copy(update={"method": method})
    assert plan_looks({"mmlu": 14_042}, policy).method == "e_value"
    assert plan_looks({"mmlu": 14_042}, policy, bounded=False).method == "group_sequential"


def test_the_method_is_the_one_by_which_a_lossless_model_passes_its_tasks() -> None:
    """By the pool alone the four would be bet on, and pass in four of five; each of them needs its looks."""
    tasks = {"gsm8k": 1319, "arc_challenge": 1172, "hellaswag": 10_042, "winogrande": 1267}
    policy = AccuracyPolicy(minimum_items=2000)
    assert plan_looks(tasks, policy).method == "group_sequential"


@pytest.mark.parametrize("sizes", [(), (5, 5), (9, 3), (-1, 4)])
def test_looks_that_do_not_rise_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must rise"):
        LookPlan("group_sequential", sizes)


def test_a_fixed_plan_with_two_looks_is_refused() -> None:
    with pytest.raises(ValueError, match="one look"):
        LookPlan("fixed", (100, 200))
