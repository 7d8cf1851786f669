"""The accuracy gate's specification."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from llm_pipeline.accuracy.gate import (
    LOOKS,
    LossSample,
    document_clusters,
    early,
    items_needed,
    judge_look,
    late,
    level_of,
    portions,
)
from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.verdict import Judgement, Verdict
from llm_pipeline.config.policy import AccuracyPolicy

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from accuracy_gate import Gate, Truth

POLICY = AccuracyPolicy(margin=0.01, task_margin=0.03, confidence=0.95, minimum_items=500)
Sides = tuple[list[ScoredItem], list[ScoredItem]]


def items(scores: Sequence[float | None], task: str = "gsm8k", **fields: Any) -> list[ScoredItem]:
    return [
        ScoredItem(task=task, item_id=number, fingerprint=f"{task}{number}", score=score, generative=False, **fields)
        for number, score in enumerate(scores)
    ]


def pair(lost: int, gained: int, pairs: int, task: str = "gsm8k") -> Sides:
    """Two evaluations with these flips, in any order; about 80 % of the rest is right on both sides."""
    same = [float(number % 5 != 0) for number in range(pairs - lost - gained)]
    both = [(1.0, 0.0)] * lost + [(0.0, 1.0)] * gained + list(zip(same, same, strict=True))
    random.Random(7).shuffle(both)  # noqa: S311
    return items([one for one, _ in both], task), items([other for _, other in both], task)


def joined(*sides: Sides) -> Sides:
    return [item for before, _ in sides for item in before], [item for _, after in sides for item in after]


def in_clusters(sides: Sides, size: int) -> Sides:
    before, after = ([one.model_copy(update={"cluster": f"p{one.item_id // size}"}) for one in side] for side in sides)
    return before, after


def judged(sides: Sides, policy: AccuracyPolicy = POLICY, **how: Any) -> Judgement:
    found = judge_look(*sides, 1, 1, policy, **how)
    assert found is not None
    return found[0]


def by_look(sides: Sides, policy: AccuracyPolicy = POLICY) -> tuple[int, Judgement]:
    """Ask fifth by fifth; the look that decided, and what it said."""
    for look in range(1, LOOKS + 1):
        asked = sides[1][: len(sides[1]) * look // LOOKS]
        if found := judge_look(sides[0], asked, look, LOOKS, policy):
            return look, found[0]
    raise AssertionError


def by_name(judgement: Judgement) -> Mapping[str, Verdict]:
    return {fact.name.removeprefix("accuracy loss, "): fact.verdict for fact in judgement.evidence}


@pytest.mark.parametrize(
    ("lost", "gained", "pairs", "verdict", "told"),
    [
        (6, 5, 3000, Verdict.GO, "6 lost, 5 gained"),
        (120, 20, 3000, Verdict.NO_GO, "120 lost, 20 gained"),
        (5, 300, 3000, Verdict.ANOMALOUS, "leaked answers"),
        (100, 260, 3000, Verdict.GO, ""),  # a gain that may be chance
        (12, 6, 1000, Verdict.INCONCLUSIVE, "more items would decide (90 % power)"),
        (20, 10, 1000, Verdict.INCONCLUSIVE, "no number of items would decide"),
        (0, 0, 499, Verdict.INCONCLUSIVE, "more items would decide"),
        (300, 0, 400, Verdict.INCONCLUSIVE, ""),  # too few, whatever they show
    ],
)
def test_a_loss_is_shown_to_be_within_the_margin_or_beyond_it_or_neither(lost, gained, pairs, verdict, told) -> None:
    judgement = judged(pair(lost, gained, pairs))
    assert judgement.verdict is verdict
    first = judgement.evidence[0]
    assert (first.name, first.samples, first.limit) == ("accuracy loss, all tasks", pairs, 0.01)
    assert told in first.detail


def test_a_bound_that_equals_its_limit_decides_nothing() -> None:
    for lost, gained, bound, decided in ((6, 5, "upper", Verdict.GO), (120, 20, "lower", Verdict.NO_GO)):
        sides = pair(lost, gained, 3000)
        limit = getattr(judged(sides).evidence[0], bound)
        nearer = 1e-9 if decided is Verdict.GO else -1e-9
        for margin, verdict in ((limit, Verdict.INCONCLUSIVE), (limit + nearer, decided)):
            policy = POLICY.model_copy(update={"margin": margin, "task_margin": 0.5})
            assert judged(sides, policy).verdict is verdict


SCORES = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([None, 0.0, 0.5, 1.0])), max_size=60)


@settings(max_examples=60, deadline=None)
@given(SCORES, SCORES)
def test_what_is_missing_never_passes(before, after) -> None:
    """Thirty items are enough for the policy, and no loss of 50 points hides in them: only gaps keep this from GO."""
    policy = AccuracyPolicy(margin=0.5, task_margin=0.5, minimum_items=30)
    baseline, candidate = (
        [
            ScoredItem(task=task, item_id=n, fingerprint=f"{task}{n}", score=score, generative=False)
            for n, (task, score) in enumerate(side)
        ]
        for side in (before, after)
    )
    places = [{(one.task, one.item_id) for one in side} for side in (baseline, candidate)]
    gaps = [one for one in (*baseline, *candidate) if one.score is None]
    if gaps or not candidate or places[0] != places[1]:
        assert judged((baseline, candidate), policy).verdict is not Verdict.GO


def test_what_is_no_comparison_is_refused() -> None:
    before, after = pair(0, 0, 600)
    with pytest.raises(IntegrityError, match="600 of 600 items of task gsm8k ask different questions"):
        judged((before, [one.model_copy(update={"fingerprint": "v2"}) for one in after]))
    for score in (85.0, -0.1, float("nan")):
        with pytest.raises(ValidationError):
            items([score])


def test_every_task_must_pass_and_one_that_was_not_measured_does_not() -> None:
    good, broken = pair(0, 0, 9500), pair(40, 0, 500, "code")
    judgement = judged(joined(good, broken))
    assert by_name(judgement) == {"all tasks": Verdict.GO, "code": Verdict.NO_GO, "gsm8k": Verdict.GO}
    assert judgement.verdict is Verdict.NO_GO
    assert "accuracy loss, code" in judgement.summary
    assert judged(good, tasks=("gsm8k", "mmlu")).verdict is Verdict.INCONCLUSIVE
    assert judged(joined(good, broken), tasks=("gsm8k",)).verdict is Verdict.GO
    assert judged(good, tasks=()).verdict is Verdict.INCONCLUSIVE


def test_one_unlucky_task_of_twenty_does_not_reject_a_lossless_model_and_a_group_of_small_tasks_is_one_task() -> None:
    """20 tasks at 5 % each would reject two lossless models in three; Holm keeps the family at 5 %.

    Of 57 subjects of 100 items none can prove three points, and together they prove one.
    """
    policy = POLICY.model_copy(update={"task_margin": 0.02})
    unlucky = pair(27, 8, 400, "task00")
    many = joined(unlucky, *(pair(2, 2, 400, f"task{number:02}") for number in range(1, 20)))
    assert judged(unlucky, policy.model_copy(update={"minimum_items": 30})).verdict is Verdict.NO_GO
    assert by_name(judged(many, policy))["task00"] is Verdict.INCONCLUSIVE
    names = tuple(f"s{number:02}" for number in range(57))
    subjects = joined(*(pair(3, 3, 100, name) for name in names))
    assert judged(subjects).verdict is Verdict.INCONCLUSIVE
    assert by_name(judged(subjects, groups={"mmlu": names})) == {"all tasks": Verdict.GO, "mmlu": Verdict.GO}


def test_graded_scores_are_compared_by_their_mean() -> None:
    draw = random.Random(5)  # noqa: S311
    before = [draw.uniform(0.3, 0.9) for _ in range(3000)]
    near = [min(1.0, max(0.0, score + draw.gauss(0.0, 0.02))) for score in before]
    far = [max(0.0, score - 0.05) for score in near]
    assert judged((items(before), items(near))).verdict is Verdict.GO
    assert judged((items(before), items(far))).verdict is Verdict.NO_GO


def test_a_baseline_that_cannot_lose_and_a_candidate_that_does_not_agree_with_it_prove_nothing() -> None:
    zeros, ones = items([0.0] * 3000), items([1.0] * 3000)
    assert "could not show" in judged((zeros, zeros)).evidence[0].detail
    coin = random.Random(1).choices((0.0, 1.0), k=9000)  # noqa: S311
    guesser = items(coin, chance=0.495)
    assert judged((guesser, guesser)).verdict is Verdict.INCONCLUSIVE
    assert judged((ones, ones)).verdict is Verdict.GO
    draw = np.random.default_rng(3)
    weak, other = (items((draw.random(4000) < 0.05).astype(float).tolist()) for _ in range(2))
    wide = POLICY.model_copy(update={"margin": 0.03})
    judgement = judged((weak, other), wide)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judged((weak, weak), wide).verdict is Verdict.GO
    assert "of what the baseline gets right" in judgement.evidence[0].detail


@pytest.mark.parametrize("arm", [0, 1])
def test_answers_that_often_ended_by_length_do_not_pass(arm: int) -> None:
    sides = pair(0, 0, 3000)
    cut = [one.model_copy(update={"cut": one.item_id < 100}) for one in sides[arm]]
    judgement = judged((sides[0], cut) if arm else (cut, sides[1]))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    (fact,) = (fact for fact in judgement.evidence if "ended by length" in fact.name)
    assert fact.name == f"{('baseline', 'candidate')[arm]}'s answers that ended by length, gsm8k"
    assert (fact.measured, fact.limit) == (100, 60)
    assert "raise evaluation.max_gen_toks" in fact.detail
    lenient = POLICY.model_copy(update={"maximum_cut_share": 0.04})
    assert judged((sides[0], cut) if arm else (cut, sides[1]), lenient).verdict is Verdict.GO


PASSAGES = [f"Passage {number}. " + "What happened next was told by nobody for long. " * 3 for number in range(4)]


def parts(documents: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Numbers of the documents of each cluster."""
    clusters = document_clusters(documents)
    return [[number for number, own in enumerate(clusters) if own == name] for name in dict.fromkeys(clusters) if name]


def test_documents_that_are_repeated_or_share_a_passage_are_one_cluster() -> None:
    passages = [{"context": [{"text": PASSAGES[number // 5]}], "question": f"{number}?"} for number in range(20)]
    passages[1]["context"] = [{"text": PASSAGES[0].upper().replace(" ", "\n  ")}]
    assert parts(passages) == [list(range(start, start + 5)) for start in (0, 5, 10, 15)]
    repeated = [{"id": number, "question": f"What is  {number % 3}?", "answer": number % 3} for number in range(6)]
    assert parts(repeated) == [[0, 3], [1, 4], [2, 5]]
    told = "Answer the question with one of the options, and explain your answer at length. " * 2
    assert parts([{"instruction": told, "question": f"{number}?"} for number in range(20)]) == []
    assert parts([{"subject": "law", "question": f"{number}?"} for number in range(9)]) == []


@pytest.mark.parametrize("questions", [60, 600])
def test_repeated_questions_pass_a_loss_of_the_margin_as_rarely_as_stated(questions: int) -> None:
    """60 questions of 50 copies each: GO in 59 % of evaluations instead of 5 %, were every copy evidence of its own."""
    clusters = document_clusters([{"question": f"{number % questions}?"} for number in range(3000)])
    lost = np.random.default_rng(1).random((60, questions)) < POLICY.margin
    passed = 0
    for row in lost:
        losses = np.resize(row, 3000).astype(float)
        passed += LossSample.of(losses, clusters).upper(0.05) < POLICY.margin
    assert passed <= 7


def test_few_clusters_decide_nothing_either_way() -> None:
    for lost, gained in ((20, 18), (900, 0)):
        judgement = judged(in_clusters(pair(lost, gained, 3000), 200))
        assert judgement.verdict is Verdict.INCONCLUSIVE
        assert "in 15 clusters. Fewer than 50 independent clusters" in judgement.evidence[0].detail
    one_large = np.concatenate([["large"] * 500, [""] * 500])
    assert LossSample.of(np.zeros(1000), one_large.tolist()).few


def test_rare_large_losses_pass_no_more_often_than_stated() -> None:
    """Every item moves a little, one in a hundred is lost; or one passage in a hundred is lost as a whole."""
    draw = np.random.default_rng(8)
    small = draw.uniform(-0.01, 0.01, size=(400, 500))
    graded = np.where(draw.random((400, 500)) < 0.01, 1.0, small)
    whole = (draw.random((400, 300)) < 0.01).astype(float).repeat(10, axis=1)
    clusters = [f"p{number // 10}" for number in range(3000)]
    assert np.mean([LossSample.of(row, [""] * 500).upper(0.05) < 0.01 for row in graded]) < 0.075
    assert np.mean([LossSample.of(row, clusters).upper(0.05) < 0.01 for row in whole]) < 0.075


def test_the_variance_of_clusters_is_the_robust_one_and_single_items_are_no_clusters() -> None:
    """The same number as regressing the losses on a constant with a sandwich over clusters."""
    draw = np.random.default_rng(2)
    losses = draw.choice([1.0, -1.0, 0.0], p=(0.2, 0.1, 0.7), size=80).repeat(6) * (draw.random(480) < 0.8)
    sample = LossSample.of(losses, [f"p{number // 6}" for number in range(480)])
    sums = (losses - losses.mean()).reshape(80, 6).sum(axis=1)
    assert sample.variance / sample.pairs == pytest.approx(80 / 79 * (sums**2).sum() / 480**2)
    assert LossSample.of(losses, [str(number) for number in range(480)]) == LossSample.of(losses, [""] * 480)


@pytest.mark.parametrize(
    ("lost", "gained", "pairs", "confidence", "lower", "upper"),
    [
        (28, 25, 618, 0.95, -0.0148, 0.0247),  # R, PropCIs::scoreci.mp(25, 28, 618, 0.90)
        (7, 1, 21, 0.975, 0.026, 0.517),  # airway reactivity (Fagerland and others 2014), R's ratesci and PropCIs
        (50, 31, 591, 0.95, 0.0072, 0.0577),  # R's PropCIs as published with a mentoring study
    ],
)
def test_bounds_are_tangos_published_ones(lost, gained, pairs, confidence, lower, upper) -> None:  # noqa: PLR0917
    sample, digits = LossSample(lost, gained, pairs), len(str(upper).split(".")[1])
    bounds = sample.lower(1 - confidence), sample.upper(1 - confidence)
    assert tuple(round(bound, digits) for bound in bounds) == (lower, upper)
    assert stats.binom.cdf(lost, 4000, LossSample(lost, 0, 4000).upper(0.05)) == pytest.approx(0.05), "exact"


@pytest.mark.parametrize("flips", [0.0101, 0.02, 0.05])
def test_false_alarms_at_the_margin_stay_near_the_stated_five_percent(flips: float) -> None:
    """Exactly; by Tango's score alone 6.7 % of 500 items at 1 % flips."""
    lost_share, gained_share, alarm = (flips + 0.01) / 2, (flips - 0.01) / 2, 0.0
    for gained in range(int(stats.binom.ppf(1 - 1e-6, 500, gained_share)) + 2):
        least = next(n for n in range(gained, 500) if LossSample(n, gained, 500).lower(0.05) > 0.01)
        later = stats.binom.sf(least - 1, 500 - gained, lost_share / (1 - gained_share))
        alarm += stats.binom.pmf(gained, 500, gained_share) * later
    assert alarm <= 0.056


@pytest.mark.parametrize(
    ("spending", "published"),
    [
        # R's gsDesign and ldbounds, five equal looks at a one-sided 0.025: sfLDOF, sfLDPocock
        (late, (4.8769, 3.3569, 2.6803, 2.2898, 2.0310)),
        (early, (2.4380, 2.4268, 2.4101, 2.3966, 2.3859)),
    ],
)
def test_boundaries_of_the_looks_are_the_published_ones(spending, published: tuple[float, ...]) -> None:
    levels = [level_of(look, 5, spending, 0.025) for look in range(1, 6)]
    assert [-stats.norm.ppf(level) for level in levels] == pytest.approx(published, abs=2e-4)
    assert level_of(1, 1, spending, 0.05) == pytest.approx(0.05, rel=1e-4)


def test_simulated_looks_pass_a_loss_of_the_margin_as_rarely_as_stated() -> None:
    draw, gate = np.random.default_rng(11), Gate(4300, LOOKS)
    assert gate.simulate(Truth(0.05, 0.01), 3000, draw).go <= 0.0625
    assert gate.simulate(Truth(0.05, 0.0), 3000, draw).go >= 0.85


@pytest.mark.parametrize(
    ("lost", "gained", "look", "verdict", "told"),
    [
        (0.01, 0.01, 3, Verdict.GO, "Stopped at look 3 of 5, 2,580 of 4,300 items."),
        (0.2, 0.02, 1, Verdict.NO_GO, "Stopped at look 1 of 5"),
        (0.01, 0.19, 1, Verdict.ANOMALOUS, ""),
        (
            0.04,
            0.02,
            2,
            Verdict.INCONCLUSIVE,
            "GO had become improbable (all tasks), which shows no loss beyond the margin.",
        ),
        (0.0275, 0.0225, 5, Verdict.INCONCLUSIVE, ""),
    ],
)
def test_the_gate_stops_as_soon_as_the_items_decide(lost, gained, look, verdict, told) -> None:
    flips = np.rint(np.array([lost, gained]) * 860).astype(int)
    kinds = np.resize(np.repeat([0, 1, 2], [*flips, 860 - flips.sum()]), 4300)
    sides = items((kinds != 1).astype(float).tolist()), items((kinds != 0).astype(float).tolist())
    stopped, judgement = by_look(sides)
    assert (stopped, judgement.verdict) == (look, verdict)
    assert told in judgement.summary


def test_no_look_decides_below_the_smallest_sample_and_the_last_one_always_says_something() -> None:
    sides = pair(0, 0, 4300)
    assert by_look(sides, POLICY.model_copy(update={"minimum_items": 3000}))[0] == 4
    look, judgement = by_look(sides, POLICY.model_copy(update={"minimum_items": 5000}))
    assert (look, judgement.verdict) == (5, Verdict.INCONCLUSIVE)
    judgement = judged((sides[0], sides[1][:-1]))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.evidence[1].name == "items without a partner or a score, gsm8k"


def test_a_verdict_names_the_task_that_it_is_of_with_its_figures_and_how_many_items_would_decide() -> None:
    """499 items of four tasks: what they lost together is far below the margin, and one task alone is not decided."""
    sides = joined(pair(5, 9, 419, "definitions"), pair(11, 3, 80, "sums"))
    policy = POLICY.model_copy(update={"margin": 0.04, "task_margin": 0.15, "minimum_items": 400})
    assert judged(sides, policy).summary == (
        "Neither shown to be good enough nor shown to be too bad. accuracy loss, sums: +10.00 points (bounds +2.54 and "
        "+18.21, margin +15.00) on 80 items, 11 lost, 3 gained. About 486 more items would decide (90 % power)."
    )
    assert judged(pair(6, 5, 3000)).summary == (
        "Not worse than the baseline by more than the margin. accuracy loss, all tasks: +0.03 points (bounds -0.17 and "
        "+0.24, margin +1.00) on 3,000 items, 6 lost, 5 gained."
    )


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["gsm8k", "mmlu", "code"]), st.lists(st.sampled_from(["", "a", "b", "c"]), max_size=40)
    )
)
def test_portions_of_equal_size_hold_every_item_once_and_tear_no_cluster(tasks: dict[str, list[str]]) -> None:
    equal = portions({"large": [""] * 3000, "small": [""] * 600})
    assert [len(portion) for portion in equal] == [720] * 5
    assert all(sum(task == "small" for task, _ in portion) == 120 for portion in equal)
    cut = portions(tasks)
    assert len(cut) <= LOOKS
    assert all(cut)
    assert sorted(place for portion in cut for place in portion) == sorted(
        (task, number) for task, own in tasks.items() for number in range(len(own))
    )
    for task, own in tasks.items():
        held = [{own[number] for name, number in portion if name == task and own[number]} for portion in cut]
        assert sum(map(len, held)) == len(set(own) - {""})
        alone = portions({task: own})
        assert [tuple(p for p in portion if p[0] == task) for portion in cut if any(p[0] == task for p in portion)] == [
            *alone
        ]


@pytest.mark.parametrize(("flips", "needed"), [(0.0, 299), (0.02, 1713), (0.05, 4282), (0.08, 6852)])
def test_ninety_percent_power_needs_the_textbooks_items(flips: float, needed: int) -> None:
    assert items_needed(0.01, flips, 0.95) == pytest.approx(needed, abs=1)
