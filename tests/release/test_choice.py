"""Which recipe, or which candidate by cost, is released, and what a million tokens cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from load_sample import sample_load_test
from resolved_release import request_below

from llm_pipeline.base.errors import Terminal
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.loadtest.outcome import LoadTestOutcome, RatePoint, TokenCost, token_cost
from llm_pipeline.release.choice import CostTrial, RecipeAttempt, choose_by_cost, choose_recipe, recipes_in_words
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.execute import execute


def attempt(recipe: str, verdict: Verdict, size: int, *, quantized: bool = True) -> RecipeAttempt:
    summary = f"{recipe} was judged"
    return RecipeAttempt(recipe=recipe, verdict=verdict, bytes=size, summary=summary, quantized=quantized)


def test_the_first_rung_that_passed_is_chosen_and_the_others_are_named() -> None:
    recipe, judgement = choose_recipe(
        [
            RecipeAttempt(recipe="int3", summary="quantize failed: infeasible"),
            attempt("int4", Verdict.NO_GO, 300),
            attempt("int8", Verdict.GO, 700),
            attempt("fp8", Verdict.GO, 690),
            attempt("nvfp4", Verdict.INCONCLUSIVE, 400),
        ]
    )
    assert (recipe, judgement.verdict) == ("int8", Verdict.GO)
    assert judgement.summary == (
        "int8, 700 B, is the cheapest that passed its accuracy gate "
        "(others: int3 failed, int4 NO_GO, fp8 GO, nvfp4 INCONCLUSIVE)."
    )


def test_recipes_that_all_failed_by_errors_are_an_error_and_no_verdict() -> None:
    failed = [RecipeAttempt(recipe=name, summary=f"quantize failed: {name} is infeasible") for name in ("int3", "int4")]
    with pytest.raises(Terminal, match="no recipe could be judged: int3: quantize failed: int3 is infeasible; int4: "):
        choose_recipe(failed)
    _, judgement = choose_recipe([failed[0], attempt("fp8", Verdict.NO_GO, 800)])
    assert judgement.verdict is Verdict.INCONCLUSIVE
    fact = judgement.evidence[0]
    assert (fact.verdict, fact.measured, fact.detail) == (Verdict.INCONCLUSIVE, None, failed[0].summary)


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({}, ""),
        ({"h200": "fp8", "l40s": "fp8"}, "fp8"),
        ({"h200": "fp8", "l40s": "int4", "h100": "fp8"}, "fp8 on h200, h100; int4 on l40s"),
    ],
)
def test_what_targets_chose_is_short_when_they_agree(chosen: dict[str, str], words: str) -> None:
    assert recipes_in_words(chosen) == words


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        (Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE),
        (Verdict.INCONCLUSIVE, Verdict.NO_GO, Verdict.INCONCLUSIVE),
        (Verdict.NO_GO, Verdict.NO_GO, Verdict.NO_GO),
        (Verdict.NO_GO, Verdict.ANOMALOUS, Verdict.ANOMALOUS),
    ],
)
def test_when_none_passed_nothing_is_chosen_and_what_is_undecided_is_no_refusal(first, second, together) -> None:
    recipe, judgement = choose_recipe([attempt("fp8", first, 800), attempt("int4", second, 300)])
    assert (recipe, judgement.verdict) == (None, together)
    assert judgement.summary == f"No recipe passed its accuracy gate: fp8 {first}, int4 {second}."
    assert [(fact.name, fact.verdict) for fact in judgement.evidence] == [
        ("checkpoint size, fp8", first), ("checkpoint size, int4", second),
    ]  # fmt: skip


def test_an_error_is_no_lost_rung_the_unquantized_model_does_not_stand_in_for_what_failed():
    recipe, judgement = choose_recipe(
        [
            RecipeAttempt(recipe="int4", summary="quantize failed: 24 layers are quantized unasked"),
            attempt("fp8", Verdict.NO_GO, 800),
            attempt("none", Verdict.GO, 1600, quantized=False),
        ]
    )
    assert (recipe, judgement.verdict) == (None, Verdict.INCONCLUSIVE)
    assert judgement.summary == (
        "Only the unquantized none passed, which stands in for no recipe that failed: int4 could not be judged: "
        "quantize failed: 24 layers are quantized unasked."
    )
    assert len(judgement.evidence) == 3
    judged = [attempt("fp8", Verdict.NO_GO, 800), attempt("none", Verdict.GO, 1600, quantized=False)]
    recipe, judgement = choose_recipe(judged)
    assert (recipe, judgement.verdict) == ("none", Verdict.GO)


def test_the_chosen_recipe_is_a_metric_of_the_stage_and_the_judgement_a_gate(tmp_path: Path) -> None:
    attempts = [attempt("fp8", Verdict.GO, 800), attempt("int4", Verdict.NO_GO, 300)]
    config = {"attempts": [one.model_dump(mode="json") for one in attempts]}
    result = execute(request_below(tmp_path, "choose", config))
    assert isinstance(result, StageResult)
    assert result.metrics == {"recipe": "fp8"}
    assert result.judgement is not None
    assert result.judgement.verdict is Verdict.GO


def trial(recipe: str, cost: float, variant: str = "", *, either_way: float = 0.02) -> CostTrial:
    told = TokenCost(estimate=cost, lower=cost - either_way, upper=cost + either_way, currency="USD")
    return CostTrial(recipe=recipe, variant=variant, verdict=Verdict.GO, cost=told)


@pytest.mark.parametrize(
    ("trials", "taken"),
    [
        ([trial("fp8", 0.3)], "fp8"),
        ([trial("none", 0.50), trial("fp8", 0.30)], "fp8"),
        ([trial("none", 0.50), trial("fp8", 0.47)], "none"),  # 0.45 to 0.49 beside 0.48 to 0.52
        ([trial("none", 0.30), trial("fp8", 0.50)], "none"),
        # shown to be cheaper than none, which would be taken without it
        ([trial("none", 0.50), trial("fp8", 0.47), trial("fp8", 0.45, "kv_fp8")], "fp8 with kv_fp8"),
        ([trial("fp8", 0.30), trial("fp8", 0.29, "ngram")], "fp8"),
        ([trial("fp8", 0.30), trial("fp8", 0.20, "ngram")], "fp8 with ngram"),
    ],
)
def test_a_larger_change_is_taken_only_where_its_whole_interval_is_cheaper_than_what_stands(trials, taken) -> None:
    chosen, judgement = choose_by_cost(trials)
    assert (chosen.name, judgement.verdict) == (taken, Verdict.GO)


def test_what_failed_a_gate_or_ended_with_an_error_is_not_taken_and_is_named() -> None:
    refused = CostTrial(recipe="fp8", verdict=Verdict.NO_GO, summary="served_accuracy: 3 points were lost.")
    failed = CostTrial(recipe="fp8", variant="ngram", summary="build failed: no memory")
    taken, judgement = choose_by_cost([trial("none", 0.50), refused, failed])
    assert taken is not None
    assert taken.recipe == "none"
    assert "fp8 NO_GO: served_accuracy: 3 points were lost; fp8 with ngram failed: build failed" in judgement.summary


@pytest.mark.parametrize(
    ("verdicts", "together"),
    [
        ((Verdict.NO_GO, Verdict.NO_GO), Verdict.NO_GO),
        ((Verdict.NO_GO, None), Verdict.INCONCLUSIVE),
        ((), Verdict.INCONCLUSIVE),
    ],
)
def test_where_none_passed_there_is_no_choice(verdicts: tuple[Verdict | None, ...], together: Verdict) -> None:
    taken, judgement = choose_by_cost([CostTrial(recipe="fp8", verdict=verdict) for verdict in verdicts])
    assert taken is None
    assert judgement.verdict is together


def test_without_a_price_nothing_can_be_chosen() -> None:
    taken, judgement = choose_by_cost([CostTrial(recipe="fp8", verdict=Verdict.GO)])
    assert taken is None
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "no price of its hour is known" in judgement.summary


Paced = Callable[..., LoadTestOutcome]


@pytest.fixture(scope="module")
def paced(tmp_path_factory: pytest.TempPathFactory) -> Paced:
    """A load test whose confirmation at 18 requests a second had windows of these tokens a second."""
    outcome = sample_load_test(tmp_path_factory.mktemp("load"), seconds=4.0)
    confirmation = outcome.windows[-1]

    def make(*paces: float, **changes: object) -> LoadTestOutcome:
        windows = tuple(
            confirmation.model_copy(
                update={
                    "name": f"confirmation-1-{number}",
                    "output_tokens_per_second": pace,
                    "offered_per_second": 18.0,
                    "void": "",
                }
            )
            for number, pace in enumerate(paces)
        )
        rates = {"rates": (), "confirmed_rate_per_second": 18.0, "highest_rate_per_second": 20.0}
        return outcome.model_copy(update={"windows": windows, **rates, **changes})

    return make


def test_the_cost_is_the_hour_by_its_tokens_between_the_bounds_of_the_windows(paced: Paced) -> None:
    cost = token_cost(paced(990.0, 1010.0, 1000.0, 1000.0), 3.6, "EUR")
    assert cost is not None
    assert cost.estimate == pytest.approx(1.0)  # 3.6 EUR for 3.6 million tokens
    assert 0.98 < cost.lower < 1.0 < cost.upper < 1.02
    assert cost.in_words == f"1 EUR ({cost.lower:.3g} to {cost.upper:.3g})"
    assert TokenCost.of_metrics(cost.metrics) == cost


def point(rate: float, verdict: Verdict) -> RatePoint:
    return RatePoint(rate_per_second=rate, good_fraction=1.0, verdict=verdict, window="w")


def test_what_is_not_known_of_the_highest_rate_makes_the_cost_less_sure(paced: Paced) -> None:
    sure = paced(1000.0, 1000.0, 1000.0)
    offered = [17.5, 18.5, 18.0]  # what a window had of the rate differs
    held = [
        one.model_copy(update={"offered_per_second": rate}) for one, rate in zip(sure.windows, offered, strict=True)
    ]
    ceiling = sure.windows[0].model_copy(update={"name": "ceiling", "phase": "ceiling", "answered_per_second": 40.0})
    failed = sure.windows[0].model_copy(update={"name": "confirmation-0-0", "offered_per_second": 27.0})
    for outcome, lower in (
        (sure, 1.0),
        (paced(1000.0, 1000.0, 1000.0, rates=(point(20.0, Verdict.GO), point(25.0, Verdict.NO_GO))), 0.8),
        (sure.model_copy(update={"windows": (ceiling, *sure.windows)}), 0.5),  # the search ended before a rate failed
        (sure.model_copy(update={"windows": (failed, *held)}), 18 / 27),  # a rate that was not confirmed
    ):
        cost = token_cost(outcome, 3.6, "USD")
        assert cost is not None
        assert (cost.lower, cost.upper) == (pytest.approx(lower), pytest.approx(1.0))


@pytest.mark.parametrize("changes", [{"confirmed_rate_per_second": None}, {"windows": ()}])
def test_there_is_no_cost_without_a_confirmed_rate(paced: Paced, changes: dict[str, object]) -> None:
    assert token_cost(paced(1000.0, **changes), 3.6, "USD") is None
    assert token_cost(paced(1000.0), None, "USD") is None
