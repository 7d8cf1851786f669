"""The gate look by look: its specification."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_pipeline.accuracy.gate import compare_as_judged, judge_pairs
from llm_pipeline.accuracy.looks import LookPlan, plan_looks
from llm_pipeline.accuracy.paired import pair_items
from llm_pipeline.accuracy.sequential import judge_look
from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.base.verdict import Judgement, Verdict
from llm_pipeline.config.policy import AccuracyPolicy

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from accuracy_gate import Gate, Truth

POLICY = AccuracyPolicy(margin=0.01, task_margin=0.03, confidence=0.95, minimum_items=300)
PLAN = LookPlan((860, 1720, 2580, 3440, 4300))
SMALL = AccuracyPolicy(minimum_items=30)


def evaluations(pairs: int, lost: float, gained: float, task: str = "t") -> tuple[list[ScoredItem], list[ScoredItem]]:
    """Two evaluations with these shares of flips, spread evenly over the order asked."""
    flips = [int((n + 1) * lost) > int(n * lost) for n in range(pairs)]
    gains = [int((n + 1) * gained + 0.7) > int(n * gained + 0.7) and not flips[n] for n in range(pairs)]
    before = [_item(task, n, float(not gains[n] and n % 5 != 0) if not flips[n] else 1.0) for n in range(pairs)]
    after = [
        old.model_copy(update={"score": 0.0 if flip else 1.0 if gain else old.score})
        for old, flip, gain in zip(before, flips, gains, strict=True)
    ]
    return before, after


def _item(task: str, number: int, score: float | None) -> ScoredItem:
    return ScoredItem(task=task, item_id=number, fingerprint=f"{task}{number}", score=score, generative=False)


def run(
    sides: tuple[list[ScoredItem], list[ScoredItem]], plan: LookPlan, policy: AccuracyPolicy = POLICY
) -> tuple[int, Judgement]:
    """Ask look by look; the look that decided, and what it said."""
    for look, size in enumerate(plan.sizes, start=1):
        judgement = judge_look(sides[0], sides[1][:size], plan, look, policy)
        if judgement is not None:
            return look, judgement
    raise AssertionError


def test_what_is_shown_is_what_was_asked_between_the_bounds_that_decided() -> None:
    before, after = evaluations(4300, 0.005, 0.005)
    look, judgement = run((before, after), PLAN)
    asked = after[: PLAN.sizes[look - 1]]
    shown = compare_as_judged(before, asked, POLICY, judgement)
    alone = compare_as_judged(before, asked, POLICY, None)
    assert look < len(PLAN.sizes)
    assert (shown.pooled.pairs, shown.pooled.unpaired) == (len(asked), 0)
    for part, sample in [(shown.pooled, alone.pooled), *zip(shown.tasks, alone.tasks, strict=True)]:
        assert part.loss is not None
        assert sample.loss is not None
        assert part.loss.upper > sample.loss.upper
        assert part.loss.lower < sample.loss.lower
    decisive = judgement.evidence[0]
    assert shown.pooled.loss is not None
    assert (shown.pooled.loss.lower, shown.pooled.loss.upper) == (decisive.lower, decisive.upper)


def test_a_lossless_model_passes_before_all_items_are_asked() -> None:
    look, judgement = run(evaluations(4300, 0.01, 0.01), PLAN)
    assert (look, judgement.verdict) == (3, Verdict.GO)
    assert "Stopped at look 3 of 5, 2,580 of 4,300 items." in judgement.summary
    assert judgement.evidence[0].samples == 2580


def test_a_broken_model_fails_at_the_first_look() -> None:
    look, judgement = run(evaluations(4300, 0.2, 0.02), PLAN)
    assert (look, judgement.verdict) == (1, Verdict.NO_GO)


def test_futility_stops_without_claiming_harm_and_says_how_many_items_would_decide() -> None:
    look, judgement = run(evaluations(4300, 0.04, 0.02), PLAN)
    assert (look, judgement.verdict) == (2, Verdict.INCONCLUSIVE)
    last = judgement.evidence[-1]
    assert last.name == "chance of GO at the last look, all tasks"
    assert last.measured is not None
    assert last.measured <= 0.01
    assert "does not show a loss" in last.detail
    assert judgement.summary.endswith("GO had become improbable.")
    assert "more items would decide" in judgement.evidence[0].detail


def test_one_hopeless_task_stops_all() -> None:
    good, bad = evaluations(3870, 0.01, 0.01), evaluations(430, 0.09, 0.03, "bad")
    order = [x for k in range(430) for x in [*good[1][9 * k : 9 * k + 9], bad[1][k]]]
    _, judgement = run(([*good[0], *bad[0]], order), PLAN)
    assert judgement.verdict is not Verdict.GO
    assert sum("bad" in fact.name for fact in judgement.evidence) >= 1


def test_a_gain_that_quantization_cannot_explain_is_anomalous_at_once() -> None:
    assert run(evaluations(4300, 0.01, 0.19), PLAN)[1].verdict is Verdict.ANOMALOUS


def test_the_last_look_always_says_something() -> None:
    look, judgement = run(evaluations(4300, 0.0275, 0.0225), PLAN)
    assert (look, judgement.verdict) == (5, Verdict.INCONCLUSIVE)


@pytest.mark.parametrize(("lost", "gained"), [(0.01, 0.01), (0.03, 0.02), (0.1, 0.02)])
def test_a_fixed_plan_is_the_plain_gate(lost: float, gained: float) -> None:
    sides = evaluations(2000, lost, gained)
    assert run(sides, LookPlan((2000,)))[1] == judge_pairs(pair_items(*sides), POLICY)


def test_the_order_within_a_look_and_what_was_asked_beyond_it_do_not_matter() -> None:
    before, after = evaluations(4300, 0.01, 0.01)
    shuffled = random.Random(2).sample(after[:1720], 1720)  # noqa: S311
    assert judge_look(before, [*shuffled, *after[1720:]], PLAN, 2, POLICY) == judge_look(
        before, after[:1720], PLAN, 2, POLICY
    )


def test_a_look_has_no_memory() -> None:
    sides = evaluations(4300, 0.01, 0.01)
    assert judge_look(sides[0], sides[1], PLAN, 5, POLICY).verdict is Verdict.GO  # type: ignore[union-attr]


def test_fewer_answers_than_the_look_asks_for_never_pass() -> None:
    before, after = evaluations(4300, 0.0, 0.0)
    judgement = judge_look(before, after[:4299], PLAN, 5, POLICY)
    assert judgement is not None
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert any(fact.name == "items without an answer" for fact in judgement.evidence)


def test_an_item_that_the_baseline_lacks_never_passes() -> None:
    before, after = evaluations(4300, 0.0, 0.0)
    assert run((before[:-1], after), PLAN)[1].verdict is Verdict.GO  # never asked: stopped before it
    assert run((before[1:], after), PLAN)[1].verdict is Verdict.INCONCLUSIVE


def test_a_task_whose_turn_has_not_come_does_not_stop_the_others() -> None:
    many, few = evaluations(4000, 0.0, 0.0), evaluations(300, 0.0, 0.0, "late")
    sides = [*many[0], *few[0]], [*many[1], *few[1]]
    look, judgement = run(sides, PLAN)
    assert (look, judgement.verdict) == (5, Verdict.GO)


def test_too_few_items_go_on_and_end_inconclusive() -> None:
    policy = POLICY.model_copy(update={"minimum_items": 5000})
    look, judgement = run(evaluations(4300, 0.0, 0.0), PLAN, policy)
    assert (look, judgement.verdict) == (5, Verdict.INCONCLUSIVE)


@pytest.mark.parametrize("look", [0, 6])
def test_a_look_that_was_not_planned_is_refused(look: int) -> None:
    with pytest.raises(ValueError, match="of 5"):
        judge_look([], [], PLAN, look, POLICY)


SCORES = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([None, float("nan"), 0.0, 0.5, 1.0])), max_size=60
)


@settings(max_examples=60, deadline=None)
@given(SCORES, SCORES, st.sampled_from([1, 5]))
def test_what_is_missing_or_not_a_number_never_passes(before, after, looks: int) -> None:
    """Sixty items are enough for the policy, and no loss of 50 points hides in them: only gaps keep this from GO."""
    policy = SMALL.model_copy(update={"looks": looks, "margin": 0.5, "task_margin": 0.5})
    baseline, candidate = ([_item(task, n, score) for n, (task, score) in enumerate(side)] for side in (before, after))
    plan = plan_looks(len(candidate), policy)
    judgement = judge_look(baseline, candidate, plan, len(plan.sizes), policy)
    assert judgement is not None
    gaps = [one for one in (*baseline[: len(candidate)], *candidate) if one.score is None or one.score != one.score]
    if gaps or not candidate or len(baseline) < len(candidate):
        assert judgement.verdict is not Verdict.GO


def test_simulated_looks_pass_a_loss_of_the_margin_as_rarely_as_stated() -> None:
    draw = np.random.default_rng(11)
    assert Gate(PLAN).simulate(Truth(0.05, 0.01), 3000, draw).go <= 0.0625
    assert Gate(PLAN).simulate(Truth(0.05, 0.0), 3000, draw).go >= 0.85
