"""In which order items are asked, and when the gate looks."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_pipeline.accuracy.looks import LookPlan, evaluation_order, plan_looks
from llm_pipeline.config.policy import AccuracyPolicy

POLICY = AccuracyPolicy(minimum_items=500)
CLUSTERS = st.lists(st.sampled_from(["", "a", "b", "c", "d"]), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(["gsm8k", "mmlu", "code"]), CLUSTERS, max_size=3))
def test_every_item_is_asked_once_and_clusters_stay_together(tasks: dict[str, list[str]]) -> None:
    order = evaluation_order(tasks)
    assert sorted(order) == sorted((task, number) for task, own in tasks.items() for number in range(len(own)))
    for task, own in tasks.items():
        met = [own[number] for name, number in order if name == task and own[number]]
        runs = sum(1 for at, cluster in enumerate(met) if at == 0 or met[at - 1] != cluster)
        assert runs == len(set(met))


def test_every_part_from_the_start_holds_the_tasks_in_proportion() -> None:
    order = evaluation_order({"large": [""] * 3000, "small": [""] * 600})
    for size in (36, 360, 1800, 3000):
        seen = Counter(task for task, _ in order[:size])
        assert seen["small"] == pytest.approx(size / 6, abs=2)


def test_the_order_is_the_tasks_own() -> None:
    tasks = {"a": [""] * 200, "b": [""] * 300}
    assert evaluation_order(tasks) == evaluation_order(tasks)
    alone = evaluation_order({"a": [""] * 200})
    assert [item for item in evaluation_order(tasks) if item[0] == "a"] == list(alone)
    assert [number for _, number in alone] != sorted(number for _, number in alone)


def test_looks_are_evenly_spaced_and_none_is_below_the_smallest_sample() -> None:
    assert plan_looks(4300, POLICY).sizes == (860, 1720, 2580, 3440, 4300)
    assert plan_looks(1500, POLICY).sizes == (500, 750, 1000, 1250, 1500)
    assert plan_looks(4300, POLICY.model_copy(update={"looks": 1})).sizes == (4300,)


@pytest.mark.parametrize("items", [0, 1, 499, 500, 501])
def test_a_pool_that_is_hardly_enough_is_looked_at_once_or_twice(items: int) -> None:
    plan = plan_looks(items, POLICY)
    assert plan.items == items
    assert len(plan.sizes) <= 2


@pytest.mark.parametrize("sizes", [(), (5, 5), (9, 3), (-1, 4)])
def test_looks_that_do_not_rise_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must rise"):
        LookPlan(sizes)
