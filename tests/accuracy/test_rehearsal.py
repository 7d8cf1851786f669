"""The gate rehearsed: the chance of a lossless model to pass."""

from __future__ import annotations

import numpy as np
import pytest

from llm_pipeline.accuracy import rehearsal
from llm_pipeline.accuracy.evaluation import TaskGroup
from llm_pipeline.accuracy.gate import judge_pairs
from llm_pipeline.accuracy.looks import LookPlan
from llm_pipeline.accuracy.paired import TaskPairs
from llm_pipeline.accuracy.rehearsal import Part, parts_of, plan_looks, rehearse
from llm_pipeline.accuracy.sequential import decision_rule
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.policy import AccuracyPolicy

POLICY = AccuracyPolicy(minimum_items=500, anomalous_gain=1.0)
SUBJECTS = {f"subject{number:02}": 246 for number in range(57)}
MMLU = TaskGroup(name="mmlu", tasks=tuple(SUBJECTS))


def chance(available: dict[str, int], policy: AccuracyPolicy, *groups: TaskGroup) -> float:
    return rehearse(parts_of(available, groups), plan_looks(available, policy, groups), policy).go


def test_fifty_seven_small_tasks_cannot_pass_and_their_group_does() -> None:
    fast = POLICY.model_copy(update={"method": "group_sequential"})
    assert chance(SUBJECTS, fast) == 0.0
    assert chance(SUBJECTS, fast, MMLU) > 0.95
    assert chance(SUBJECTS, fast, MMLU.model_copy(update={"weighting": "tasks"})) > 0.95


def test_small_tasks_that_are_judged_for_harm_only_do_not_keep_a_lossless_model_from_passing() -> None:
    tasks = {f"small{number}": 200 for number in range(20)} | {"large": 6000}
    fast = POLICY.model_copy(update={"method": "group_sequential"})
    assert chance(tasks, fast) < 0.1
    assert chance(tasks, fast.model_copy(update={"small_tasks": "harm_only"})) > 0.85


def test_a_pool_of_the_needed_size_passes_as_often_as_was_asked_for() -> None:
    assert chance({"a": 4282}, POLICY.model_copy(update={"method": "fixed"})) == pytest.approx(0.9, abs=0.04)


def test_the_task_that_keeps_the_others_from_passing_is_named() -> None:
    tasks = {"large": 9000, "small": 150}
    assert rehearse(parts_of(tasks), plan_looks(tasks, POLICY), POLICY).failing == "small"


@pytest.mark.parametrize("method", ["fixed", "group_sequential", "e_value"])
@pytest.mark.parametrize("by_task", [False, True])
def test_the_rehearsal_judges_as_the_gate_does(method: str, by_task: bool) -> None:
    """The same counts, through the gate's own judge, at the last look."""
    sizes = (900, 300, 150) if by_task else (1350,)
    policy = POLICY.model_copy(update={"method": method, "margin": 0.02})
    plan = LookPlan(method, (1350,) if method == "fixed" else (700, 1350))  # type: ignore[arg-type]
    judge = rehearsal._Judge(plan, policy, (Part("g", sizes),))
    draw = np.random.default_rng(3)
    counts = rehearsal._more(draw, np.array(sizes), 25, 0.05)
    told = judge.look(len(plan.sizes), [counts], [np.array(sizes)])[0]
    for run, said in zip(counts, told, strict=True):
        parts = tuple(_pairs(f"t{n}", *run[n].tolist(), size) for n, size in enumerate(sizes))
        scores = tuple(pair for part in parts for pair in part.scores)
        whole = TaskPairs("g", scores, ("",) * len(scores), 0, parts=parts, by_task=by_task)
        verdict = judge_pairs([whole], policy, decision_rule(plan, len(plan.sizes))).verdict
        assert bool(said) == (verdict is Verdict.GO)


def _pairs(name: str, lost: int, gained: int, size: int) -> TaskPairs:
    scores = ((1.0, 0.0),) * lost + ((0.0, 1.0),) * gained + ((1.0, 1.0),) * (size - lost - gained)
    return TaskPairs(name, scores, ("",) * size, 0)
