"""The baseline gate's specification: what a source must score before anything is compared with it."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from scipy.stats import binom

from llm_pipeline.accuracy.baseline_gate import GUESSING_LEVEL, LITTLE_ABOVE_GUESSING, judge_baseline
from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.base.verdict import Judgement, Verdict
from llm_pipeline.config.release import ExpectedScore

CARD = ExpectedScore(minimum=0.93, maximum=0.97, source="model card, 2026-05")


def items(
    scores: Iterable[float | None],
    task: str = "arc",
    chance: float | None = 0.25,
    clusters: Sequence[str] = (),
    template: str = "v1",
) -> list[ScoredItem]:
    return [
        ScoredItem.model_construct(
            task=task, item_id=number, fingerprint=f"{template}/{number}", score=score, generative=False,
            cluster=clusters[number] if clusters else "", chance=chance,
        )
        for number, score in enumerate(scores)
    ]  # fmt: skip


def right(count: int, of: int) -> list[float]:
    return [1.0] * count + [0.0] * (of - count)


def judged(count: int, of: int, expected: ExpectedScore | None = None, chance: float | None = 0.25) -> Judgement:
    return judge_baseline(items(right(count, of), chance=chance), {"arc": expected} if expected else {}, {})


def by_name(judgement: Judgement) -> dict[str, Verdict]:
    return {fact.name: fact.verdict for fact in judgement.evidence}


@pytest.mark.parametrize(
    ("count", "of", "expected", "chance", "verdict"),
    [
        (602, 1000, CARD, 0.25, Verdict.ANOMALOUS),  # a norm is missing: 60.2 %
        (900, 1000, CARD, 0.25, Verdict.ANOMALOUS),
        (915, 1000, CARD, 0.25, Verdict.GO),  # below the range by less than chance explains
        (950, 1000, CARD, 0.25, Verdict.GO),
        (980, 1000, CARD, 0.25, Verdict.GO),
        (999, 1000, CARD, 0.25, Verdict.ANOMALOUS),
        (28, 29, CARD, 0.25, Verdict.INCONCLUSIVE),  # a handful says nothing of a range
        (29, 30, CARD, 0.25, Verdict.GO),
        (150, 600, None, 0.25, Verdict.ANOMALOUS),  # without a range it must do better than guessing
        (180, 600, None, 0.25, Verdict.INCONCLUSIVE),
        (200, 600, None, 0.25, Verdict.GO),
        (6, 20, None, 0.25, Verdict.INCONCLUSIVE),
        (0, 100, None, 0.0, Verdict.ANOMALOUS),  # a written answer cannot be guessed
        (0, 20, None, 0.0, Verdict.INCONCLUSIVE),
        (1, 100, None, 0.0, Verdict.GO),
    ],
)
def test_a_score_must_meet_its_range_and_be_better_than_guessing(count, of, expected, chance, verdict) -> None:
    assert judged(count, of, expected, chance).verdict is verdict


def test_the_verdict_names_the_task_the_score_the_range_and_its_source() -> None:
    judgement = judged(602, 1000, CARD)
    assert judgement.summary.startswith("The baseline itself is wrong")
    for text in ("arc", "60.20 %", "93.00 % to 97.00 %", "model card, 2026-05"):
        assert text in judgement.summary
    fact = judgement.evidence[0]
    assert (fact.measured, fact.limit, fact.samples, fact.unit) == (0.602, 0.93, 1000, "fraction")


def test_a_range_that_is_met_does_not_lift_the_floor() -> None:
    low = ExpectedScore(minimum=0.1, maximum=0.9, source="nobody")
    assert by_name(judged(250, 1000, low)) == {"score, arc": Verdict.GO, "better than guessing, arc": Verdict.ANOMALOUS}


def test_a_group_of_tasks_is_judged_as_one_for_its_parts_are_too_small() -> None:
    parts = [items(right(30, 100), f"mmlu_{n}") for n in range(20)]
    together = [item for part in parts for item in part]
    assert judge_baseline(together, {}, {"mmlu": [f"mmlu_{n}" for n in range(20)]}).verdict is Verdict.GO
    assert judge_baseline(together, {}, {}).verdict is not Verdict.GO


def test_each_task_is_judged_and_the_worst_of_them_decides() -> None:
    both = [*items(right(950, 1000), "good"), *items(right(250, 1000), "bad")]
    judgement = judge_baseline(both, {"good": CARD}, {})
    assert judgement.verdict is Verdict.ANOMALOUS
    assert by_name(judgement)["better than guessing, good"] is Verdict.GO
    assert "bad" in judgement.summary
    assert "good" not in judgement.summary


def test_no_data_never_pass() -> None:
    assert judge_baseline([], {}, {}).verdict is Verdict.INCONCLUSIVE
    assert judge_baseline([], {"arc": CARD}, {}).verdict is Verdict.INCONCLUSIVE
    assert judge_baseline(items([None] * 100), {"arc": CARD}, {}).verdict is Verdict.INCONCLUSIVE
    assert judge_baseline(items([*right(95, 99), None]), {"arc": CARD}, {}).verdict is Verdict.INCONCLUSIVE


def test_answers_that_often_ended_by_length_are_no_baseline() -> None:
    cut = [item.model_copy(update={"cut": item.item_id < 30}) for item in items(right(950, 1000))]
    judgement = judge_baseline(cut, {"arc": CARD}, {})
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "close the thinking" in judgement.summary
    assert judge_baseline(cut, {"arc": CARD}, {}, maximum_cut_share=0.05).verdict is Verdict.GO


def test_items_of_one_cluster_count_as_what_they_are_together() -> None:
    clusters = [f"passage {number // 50}" for number in range(1000)]
    scores = [float(number // 50 % 5 != 0) for number in range(1000)]  # 80 %, all or none of a passage
    stated = ExpectedScore(minimum=0.9, maximum=0.95, source="card")
    apart = judge_baseline(items(scores), {"arc": stated}, {})
    together = judge_baseline(items(scores, clusters=clusters), {"arc": stated}, {})
    assert by_name(apart)["score, arc"] is Verdict.ANOMALOUS
    assert by_name(together)["score, arc"] is Verdict.INCONCLUSIVE  # twenty passages
    assert together.evidence[0].upper > apart.evidence[0].upper


def test_a_revision_that_lost_much_since_production_is_anomalous_where_no_range_says_better() -> None:
    before = items(right(950, 1000))

    def since(count: int, expected: ExpectedScore | None = None, template: str = "v1") -> Judgement:
        ranges = {"arc": expected} if expected else {}
        return judge_baseline(items(right(count, 1000), template=template), ranges, {}, before)

    assert since(602).verdict is Verdict.ANOMALOUS
    assert since(602, ExpectedScore(minimum=0.55, maximum=0.65, source="card")).verdict is Verdict.GO
    assert {since(count).verdict for count in (930, 950, 990)} == {Verdict.GO}, "anything gained, or a little lost"
    assert by_name(since(602, template="v2")) == {"better than guessing, arc": Verdict.GO}, "it was asked otherwise"


def least(verdict: Verdict, of: int, chance: float, expected: ExpectedScore | None = None) -> int:
    """The least number of right answers that is given this verdict, up to the range's maximum."""
    found = range(int(of * CARD.maximum))
    order = [Verdict.ANOMALOUS, Verdict.INCONCLUSIVE, Verdict.GO]
    rank = order.index(verdict)
    return bisect.bisect_left(found, rank, key=lambda count: order.index(judged(count, of, expected, chance).verdict))


@pytest.mark.parametrize(("chance", "of"), [(0.25, 100), (0.25, 1000), (0.5, 100), (0.5, 1000)])
def test_a_guesser_passes_once_in_a_thousand_times_at_most(chance: float, of: int) -> None:
    assert 0.0001 < binom.sf(least(Verdict.GO, of, chance) - 1, of, chance) <= GUESSING_LEVEL


def test_a_large_sample_calls_a_guesser_anomalous_and_hardly_ever_a_model_with_something_to_lose() -> None:
    undecided, little = least(Verdict.INCONCLUSIVE, 1000, 0.25), 0.25 + LITTLE_ABOVE_GUESSING * 0.75
    assert binom.cdf(undecided - 1, 1000, 0.25) > 0.99
    assert 0.005 < binom.cdf(undecided - 1, 1000, little) <= 0.01
    assert binom.sf(least(Verdict.GO, 200, 0.25) - 1, 200, 0.4) > 0.9


def test_a_model_on_the_edge_of_its_range_is_called_wrong_once_in_a_hundred_times_at_most() -> None:
    called = least(Verdict.GO, 1319, 0.25, CARD)
    assert 0.005 < binom.cdf(called - 1, 1319, 0.93) <= 0.01
    assert binom.cdf(called - 1, 1319, 0.89) > 0.9


def test_simulated_guessers_with_different_numbers_of_choices_do_not_pass() -> None:
    chances = np.resize([1 / 2, 1 / 4, 1 / 16], 300)
    found = (np.random.default_rng(7).random((5000, 300)) < chances).sum(axis=1)

    def verdict(count: int) -> Verdict:
        guessed = zip(items(right(count, 300)), chances.tolist(), strict=True)
        return judge_baseline([item.model_copy(update={"chance": chance}) for item, chance in guessed], {}, {}).verdict

    passed = {int(count) for count in set(found) if verdict(int(count)) is Verdict.GO}
    assert np.isin(found, list(passed)).mean() <= GUESSING_LEVEL
