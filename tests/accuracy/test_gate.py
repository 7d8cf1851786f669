"""The accuracy gate's specification."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from llm_pipeline.accuracy.evaluation import Scoring, TaskGroup
from llm_pipeline.accuracy.gate import judge_pairs
from llm_pipeline.accuracy.looks import plan_looks
from llm_pipeline.accuracy.paired import TaskPairs, bound_losses, compare, pair_items
from llm_pipeline.accuracy.sequential import judge_look
from llm_pipeline.accuracy.table import format_comparison
from llm_pipeline.accuracy.task_metrics import TaskMetric
from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.verdict import Judgement, Verdict
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.statistics.intervals import Bounds
from llm_pipeline.statistics.score_test import SCORE_TEST

POLICY = AccuracyPolicy(margin=0.01, task_margin=0.03, confidence=0.95, minimum_items=500)


def items(scores: Sequence[float | None], task: str = "gsm8k", template: str = "v1") -> list[ScoredItem]:
    return [
        ScoredItem(task=task, item_id=number, fingerprint=f"{template}/{number}", score=score, generative=False)
        for number, score in enumerate(scores)
    ]


def pair(lost: int, gained: int, pairs: int, task: str = "gsm8k") -> tuple[list[ScoredItem], list[ScoredItem]]:
    """Two evaluations that differ in exactly these flips; about 80 % of the rest is right on both sides."""
    same = [float(number % 5 != 0) for number in range(pairs - lost - gained)]
    return items([1.0] * lost + [0.0] * gained + same, task), items([0.0] * lost + [1.0] * gained + same, task)


def paired(lost: int, gained: int, pairs: int) -> list[TaskPairs]:
    """What `pair_items` gives for these flips, without the cost of building thousands of items."""
    scores = ((1.0, 0.0),) * lost + ((0.0, 1.0),) * gained + ((1.0, 1.0),) * (pairs - lost - gained)
    return [TaskPairs("gsm8k", scores, ("",) * pairs, unpaired=0)]


def bounds(lost: int, gained: int, pairs: int) -> Bounds:
    loss = bound_losses(paired(lost, gained, pairs), POLICY.confidence, POLICY.confidence).pooled.loss
    assert loss is not None
    return loss


def judge_accuracy(
    baseline: Sequence[ScoredItem],
    candidate: Sequence[ScoredItem],
    policy: AccuracyPolicy,
    tasks: Sequence[str] | None = None,
) -> Judgement:
    return judge_pairs(pair_items(baseline, candidate, tasks), policy)


def verdict(lost: int, gained: int, pairs: int, policy: AccuracyPolicy = POLICY) -> Verdict:
    return judge_accuracy(*pair(lost, gained, pairs), policy).verdict


def by_name(judgement: Judgement) -> dict[str, Verdict]:
    return {fact.name: fact.verdict for fact in judgement.evidence}


def test_a_loss_surely_below_the_margin_is_go() -> None:
    judgement = judge_accuracy(*pair(6, 5, 3000), POLICY)
    assert judgement.verdict is Verdict.GO
    first = judgement.evidence[0]
    assert (first.name, first.samples, first.limit) == ("accuracy loss, all tasks", 3000, 0.01)
    assert first.upper is not None
    assert first.upper < 0.01


def test_a_loss_surely_above_the_margin_is_no_go() -> None:
    assert verdict(120, 20, 3000) is Verdict.NO_GO


def test_an_interval_across_the_margin_is_inconclusive_and_says_how_many_items_would_decide() -> None:
    judgement = judge_accuracy(*pair(12, 6, 1000), POLICY)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "more items would decide (90 % power)" in judgement.evidence[0].detail


def test_an_observed_loss_on_the_margin_says_that_no_number_of_items_decides() -> None:
    judgement = judge_accuracy(*pair(20, 10, 1000), POLICY)
    assert "no number of items would decide" in judgement.evidence[0].detail


def test_a_good_point_estimate_on_few_items_is_not_enough() -> None:
    assert verdict(0, 0, 499) is Verdict.INCONCLUSIVE


def test_too_few_items_are_inconclusive_whatever_they_show() -> None:
    assert verdict(300, 0, 400) is Verdict.INCONCLUSIVE
    assert verdict(0, 300, 400) is Verdict.INCONCLUSIVE


def test_a_bound_that_equals_the_margin_does_not_pass() -> None:
    upper = bounds(6, 5, 3000).upper
    assert verdict(6, 5, 3000, POLICY.model_copy(update={"margin": upper})) is Verdict.INCONCLUSIVE
    assert verdict(6, 5, 3000, POLICY.model_copy(update={"margin": upper + 1e-12})) is Verdict.GO


def test_a_bound_that_equals_the_margin_from_above_does_not_fail() -> None:
    lower = bounds(120, 20, 3000).lower
    wide = POLICY.model_copy(update={"margin": lower, "task_margin": 0.5})
    assert verdict(120, 20, 3000, wide) is Verdict.INCONCLUSIVE
    assert verdict(120, 20, 3000, wide.model_copy(update={"margin": lower - 1e-12})) is Verdict.NO_GO


def test_nothing_is_rounded_before_it_is_compared() -> None:
    """1.004 points of upper bound would be 1.00 on two digits."""
    lost = next(n for n in range(1, 200) if 0.01 < bounds(n, 5, 5000).upper < 0.0105)
    assert verdict(lost, 5, 5000) is Verdict.INCONCLUSIVE


def test_an_improbable_gain_is_anomalous() -> None:
    assert verdict(5, 300, 3000) is Verdict.ANOMALOUS


def test_a_gain_that_may_be_chance_is_not_anomalous() -> None:
    assert verdict(100, 260, 3000, POLICY) is Verdict.GO


def test_no_items_at_all_are_inconclusive() -> None:
    judgement = judge_accuracy([], [], POLICY)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "no item is scored on both sides" in judgement.summary


@pytest.mark.parametrize("side", ["baseline", "candidate"])
def test_a_task_that_one_side_lacks_is_never_go(side: str) -> None:
    both = [*items([1.0] * 2000), *items([1.0] * 2000, "mmlu")]
    one = both[:2000]
    judgement = judge_accuracy(one, both, POLICY) if side == "baseline" else judge_accuracy(both, one, POLICY)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert by_name(judgement)["accuracy loss, mmlu"] is Verdict.INCONCLUSIVE
    assert "mmlu: 2000" in next(f.detail for f in judgement.evidence if f.name == "items without a partner or a score")


def test_a_task_that_must_be_judged_and_was_never_measured_is_never_go() -> None:
    judgement = judge_accuracy(*pair(0, 0, 3000), POLICY, tasks=("gsm8k", "mmlu"))
    assert judgement.verdict is Verdict.INCONCLUSIVE


def test_only_the_tasks_asked_for_are_judged() -> None:
    baseline = [*items([1.0] * 2000), *items([1.0] * 2000, "mmlu")]
    judgement = judge_accuracy(baseline, baseline[:2000], POLICY, tasks=("gsm8k",))
    assert judgement.verdict is Verdict.GO


def test_an_empty_choice_of_tasks_is_inconclusive() -> None:
    assert judge_accuracy(*pair(0, 0, 3000), POLICY, tasks=()).verdict is Verdict.INCONCLUSIVE


def test_items_of_one_template_are_not_independent_evidence() -> None:
    """38 of 3000 flips pass alone; in 15 templates that each lost or gained as one they show nothing."""
    baseline, candidate = pair(20, 18, 3000)
    assert judge_accuracy(baseline, candidate, POLICY).verdict is Verdict.GO
    alike = [
        [item.model_copy(update={"cluster": f"template {item.item_id // 200}"}) for item in side]
        for side in (baseline, candidate)
    ]
    judgement = judge_accuracy(*alike, POLICY)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "in 15 clusters" in judgement.evidence[0].detail


def test_an_item_missing_on_one_side_is_never_go() -> None:
    baseline, candidate = pair(0, 0, 3000)
    assert judge_accuracy(baseline, candidate[:-1], POLICY).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("score", [None, float("nan")])
def test_an_item_without_a_score_is_never_go(score: float | None) -> None:
    baseline, candidate = pair(0, 0, 3000)
    candidate[7] = candidate[7].model_copy(update={"score": score})
    assert judge_accuracy(baseline, candidate, POLICY).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("score", [1.01, -0.2, 85.0, float("inf")])
def test_scores_on_another_scale_are_refused(score: float) -> None:
    baseline, candidate = pair(0, 0, 3000)
    candidate[7] = candidate[7].model_copy(update={"score": score})
    with pytest.raises(IntegrityError, match="outside 0 to 1"):
        judge_accuracy(baseline, candidate, POLICY)


def test_another_template_or_dataset_is_refused() -> None:
    with pytest.raises(IntegrityError, match=r"3000 of 3000 items of task gsm8k ask different questions"):
        judge_accuracy(items([1.0] * 3000), items([1.0] * 3000, template="v2"), POLICY)


def test_an_item_counted_twice_is_refused() -> None:
    baseline, candidate = pair(0, 0, 3000)
    with pytest.raises(IntegrityError, match="occurs twice"):
        judge_accuracy([*baseline, baseline[0]], candidate, POLICY)


def test_the_order_of_the_items_does_not_matter() -> None:
    baseline, candidate = pair(20, 10, 3000)
    shuffled = random.Random(1).sample(candidate, len(candidate))  # noqa: S311
    assert judge_accuracy(baseline, shuffled, POLICY) == judge_accuracy(baseline, candidate, POLICY)


def test_one_broken_task_stops_a_release_whose_average_is_fine() -> None:
    good, broken = pair(0, 0, 9500), pair(40, 0, 500, "code")
    judgement = judge_accuracy([*good[0], *broken[0]], [*good[1], *broken[1]], POLICY)
    assert by_name(judgement)["accuracy loss, all tasks"] is Verdict.GO
    assert by_name(judgement)["accuracy loss, code"] is Verdict.NO_GO
    assert judgement.verdict is Verdict.NO_GO
    assert "accuracy loss, code" in judgement.summary


def test_one_unlucky_task_of_twenty_does_not_reject_a_lossless_model() -> None:
    """20 tasks at 5 % each would reject two lossless models in three; Holm keeps the family at 5 %."""
    baseline, candidate = pair(27, 8, 400, "task00")
    for number in range(1, 20):
        more = pair(2, 2, 400, f"task{number:02}")
        baseline, candidate = [*baseline, *more[0]], [*candidate, *more[1]]
    alone = bounds(27, 8, 400)
    assert alone.lower > 0.02
    lenient = POLICY.model_copy(update={"task_margin": 0.02})
    assert by_name(judge_accuracy(baseline, candidate, lenient))["accuracy loss, task00"] is Verdict.INCONCLUSIVE


def test_lossless_models_are_rarely_rejected_and_bad_ones_rarely_pass() -> None:
    draw = random.Random(11)  # noqa: S311
    verdicts: dict[float, list[Verdict]] = {}
    for loss in (0.0, 0.01, 0.04):
        for _ in range(40):
            kinds = draw.choices(("lost", "gained", "same"), ((0.05 + loss) / 2, (0.05 - loss) / 2, 0.95), k=4300)
            pairs = paired(kinds.count("lost"), kinds.count("gained"), 4300)
            verdicts.setdefault(loss, []).append(judge_pairs(pairs, POLICY).verdict)
    assert verdicts[0.0].count(Verdict.GO) >= 31
    assert Verdict.NO_GO not in verdicts[0.0]
    assert verdicts[0.01].count(Verdict.GO) <= 6
    assert verdicts[0.04] == [Verdict.NO_GO] * 40


def test_a_baseline_that_cannot_lose_proves_nothing() -> None:
    zeros = items([0.0] * 3000)
    judgement = judge_accuracy(zeros, zeros, POLICY)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "could not show" in judgement.evidence[0].detail


def test_graded_scores_are_compared_by_their_mean() -> None:
    draw = random.Random(5)  # noqa: S311
    before = [draw.uniform(0.3, 0.9) for _ in range(3000)]
    near = [min(1.0, max(0.0, score + draw.gauss(0.0, 0.02))) for score in before]
    far = [score - 0.05 for score in near]
    assert judge_accuracy(items(before), items(near), POLICY).verdict is Verdict.GO
    assert judge_accuracy(items(before), items(far), POLICY).verdict is Verdict.NO_GO


def test_the_table_is_aligned_and_starts_on_its_own_line() -> None:
    one, two = pair(6, 5, 3000), pair(3, 1, 700, "a_task_with_a_long_name")
    table = format_comparison(compare([*one[0], *two[0]], [*one[1], *two[1]], POLICY.confidence), POLICY)
    assert table.startswith("\n")
    rows = [line for line in table.splitlines() if "%" in line and not line.startswith("One-sided")]
    assert [row.split()[0] for row in rows] == ["a_task_with_a_long_name", "gsm8k", "all"]
    assert len({row.rindex("0") for row in rows}) == 1
    assert "+0.03" in table


def subjects(lost: int, gained: int, sizes: Sequence[int], **group: object) -> tuple[list[TaskPairs], Scoring]:
    """A group of tasks, each with these flips."""
    tasks = [
        TaskPairs(f"s{n:02}", paired(lost, gained, size)[0].scores, ("",) * size, 0) for n, size in enumerate(sizes)
    ]
    return tasks, Scoring((TaskGroup(name="mmlu", tasks=tuple(task.name for task in tasks), **group),))


def as_items(tasks: Sequence[TaskPairs], side: int) -> list[ScoredItem]:
    return [item for task in tasks for item in items([pair[side] for pair in task.scores], task.name)]


def judge_group(tasks: Sequence[TaskPairs], scoring: Scoring, policy: AccuracyPolicy = POLICY) -> Judgement:
    return judge_pairs(pair_items(as_items(tasks, 0), as_items(tasks, 1), scoring=scoring), policy)


def test_a_group_of_small_tasks_is_judged_as_one_task() -> None:
    """57 subjects of 100 items each: none can prove three points, and together they prove one."""
    tasks, scoring = subjects(3, 3, [100] * 57)
    alone = judge_group(tasks, Scoring())
    together = judge_group(tasks, scoring)
    assert alone.verdict is Verdict.INCONCLUSIVE
    assert together.verdict is Verdict.GO
    assert [fact.name for fact in together.evidence] == ["accuracy loss, all tasks", "accuracy loss, mmlu"]
    assert "Largest losses of its 57 tasks" in together.evidence[1].detail


def test_a_group_that_lost_too_much_fails_as_one_task() -> None:
    assert judge_group(*subjects(20, 2, [246] * 57)).verdict is Verdict.NO_GO


def test_a_group_by_tasks_is_the_mean_of_its_tasks_means() -> None:
    """A small task that lost much counts as much as a large one: 1 lost of 1000 and 20 of 100 are ten points."""
    small, large = TaskPairs("a", paired(20, 0, 100)[0].scores, ("",) * 100, 0), paired(1, 0, 1000)[0]
    for weighting, loss in (("tasks", (0.2 + 0.001) / 2), ("items", 21 / 1100)):
        group = TaskGroup(name="both", tasks=("a", "gsm8k"), weighting=weighting)
        (part,) = pair_items(as_items([small, large], 0), as_items([small, large], 1), scoring=Scoring((group,)))
        bounded = bound_losses([part], 0.95, 0.95).tasks[0]
        assert bounded.loss is not None
        assert bounded.loss.estimate == pytest.approx(loss)
        assert bounded.loss.lower < loss < bounded.loss.upper
        assert [own.name for own in bounded.parts] == ["a", "gsm8k"]


def test_bounds_of_a_group_by_tasks_cover_the_truth_as_often_as_stated() -> None:
    draw = np.random.default_rng(5)
    sizes, shares = (600, 200, 60, 60), ((0.02, 0.02), (0.05, 0.03), (0.1, 0.06), (0.12, 0.04))
    truth = sum(lost - gained for lost, gained in shares) / 4
    misses = np.zeros(2)
    for _ in range(400):
        kinds = [draw.choice(3, size, p=(*own, 1 - sum(own))) for size, own in zip(sizes, shares, strict=True)]
        pairs = [tuple([(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)][kind] for kind in own) for own in kinds]
        parts = tuple(TaskPairs(f"t{n}", own, ("",) * len(own), 0) for n, own in enumerate(pairs))
        whole = TaskPairs("g", sum(pairs, ()), ("",) * sum(sizes), 0, parts=parts, by_task=True)
        bounds = SCORE_TEST.bounds(whole.sample, 0.95)
        misses += [bounds.upper < truth, bounds.lower > truth]
    assert (misses / 400 <= 0.08).all()


def test_a_group_by_tasks_is_not_judged_before_each_of_its_tasks_was_asked() -> None:
    tasks, scoring = subjects(0, 0, [800, 800, 800], weighting="tasks")
    asked = {("s00", n) for n in range(800)} | {("s01", n) for n in range(800)}
    before, after = as_items(tasks, 0), [item for item in as_items(tasks, 1) if (item.task, item.item_id) in asked]
    pairs = pair_items(before, after, ("s00", "s01", "s02"), asked, scoring)
    judgement = judge_pairs(pairs, POLICY)
    assert by_name(judgement)["accuracy loss, mmlu"] is Verdict.INCONCLUSIVE
    assert judgement.evidence[0].samples == 1600


BITS = TaskMetric(metric="bits_per_byte", higher_is_better=False, minimum=0.0, maximum=None)


def test_less_is_better_where_the_metric_says_so() -> None:
    draw = random.Random(5)  # noqa: S311
    before = [draw.uniform(0.5, 1.5) for _ in range(2000)]
    scoring = Scoring(metrics={"gsm8k": BITS})
    for change, expected in ((0.0, Verdict.GO), (0.05, Verdict.NO_GO)):
        after = [score * (1 + change) + draw.gauss(0.0, 0.02) for score in before]
        pairs = pair_items(items(before), items(after), scoring=scoring)
        judgement = judge_pairs(pairs, POLICY)
        assert judgement.verdict is expected
        assert judgement.evidence[0].measured == pytest.approx(change, abs=0.005)
        side = bound_losses(pairs, 0.95, 0.95).tasks[0].baseline
        assert side is not None
        assert side.estimate == pytest.approx(sum(before) / 2000)


def test_scores_of_another_range_are_shares_of_it() -> None:
    scoring = Scoring(metrics={"gsm8k": TaskMetric(metric="chrf", minimum=0.0, maximum=100.0)})
    before = [40.0 + number % 20 for number in range(2000)]
    after = [score - 5.0 for score in before]
    judgement = judge_pairs(pair_items(items(before), items(after), scoring=scoring), POLICY)
    assert judgement.evidence[0].measured == pytest.approx(0.05)
    assert judgement.verdict is Verdict.NO_GO


def test_scores_without_bounds_are_not_pooled_with_others() -> None:
    scoring = Scoring(metrics={"text": BITS})
    right, wrong = pair(6, 5, 3000)
    text = [0.9 + number % 7 / 10 for number in range(100)]
    worse = [score * 1.2 for score in text]
    pairs = pair_items([*right, *items(text, "text")], [*wrong, *items(worse, "text")], scoring=scoring)
    judgement = judge_pairs(pairs, POLICY)
    assert by_name(judgement)["accuracy loss, all tasks"] is Verdict.GO
    assert judgement.evidence[0].samples == 3000
    assert by_name(judgement)["accuracy loss, text"] is Verdict.NO_GO


@pytest.mark.parametrize(("items", "verdict"), [(600, Verdict.GO), (120, Verdict.INCONCLUSIVE)])
def test_the_same_scores_without_bounds_pass_when_there_are_enough_of_them(items: int, verdict: Verdict) -> None:
    texts = [
        ScoredItem(task="read", item_id=n, fingerprint=str(n), score=0.5 + n / items, generative=False)
        for n in range(items)
    ]
    scoring = Scoring(metrics={"read": TaskMetric(metric="bits_per_byte", higher_is_better=False, minimum=0.0)})
    policy = AccuracyPolicy(margin=0.01, task_margin=0.03, minimum_items=100)
    plan = plan_looks(items, policy)
    looks = (judge_look(texts, texts, plan, look, policy, scoring=scoring) for look in range(1, len(plan.sizes) + 1))
    judgement = next(one for one in looks if one is not None)
    assert judgement.verdict is verdict, judgement.summary
