"""Which recipe is released."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from llm_pipeline.accuracy.choice import RecipeAttempt, choose_recipe, recipes_in_words
from llm_pipeline.base.verdict import Verdict


def attempt(recipe: str, verdict: Verdict, size: int, *, quantized: bool = True) -> RecipeAttempt:
    summary = f"{recipe} was judged"
    return RecipeAttempt(recipe=recipe, verdict=verdict, bytes=size, summary=summary, quantized=quantized)


def test_the_first_rung_that_passed_is_chosen_and_the_others_are_named() -> None:
    choice = choose_recipe(
        [
            RecipeAttempt(recipe="int3", summary="quantize failed: infeasible"),
            attempt("int4", Verdict.NO_GO, 300),
            attempt("int8", Verdict.GO, 700),
            attempt("fp8", Verdict.GO, 690),
            attempt("nvfp4", Verdict.INCONCLUSIVE, 400),
        ]
    )
    assert choice.recipe == "int8"
    assert choice.judgement.verdict is Verdict.GO
    assert choice.judgement.summary == (
        "int8, 0.0 MB, is the cheapest that passed its accuracy gate "
        "(others: int3 failed, int4 NO_GO, fp8 GO, nvfp4 INCONCLUSIVE)."
    )


def test_a_recipe_that_failed_before_its_gate_never_passes() -> None:
    choice = choose_recipe([RecipeAttempt(recipe="int3", summary="quantize failed: infeasible")])
    (fact,) = choice.judgement.evidence
    assert (choice.recipe, choice.judgement.verdict) == (None, Verdict.NO_GO)
    assert (fact.verdict, fact.measured, fact.detail) == (Verdict.INCONCLUSIVE, None, "quantize failed: infeasible")


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


@pytest.mark.parametrize("verdict", [Verdict.NO_GO, Verdict.INCONCLUSIVE, Verdict.ANOMALOUS])
def test_when_none_passed_nothing_is_chosen_and_every_attempt_is_shown(verdict: Verdict) -> None:
    choice = choose_recipe([attempt("fp8", verdict, 800), attempt("int4", Verdict.NO_GO, 300)])
    assert choice.recipe is None
    assert choice.judgement.verdict is Verdict.NO_GO
    assert {fact.name: fact.verdict for fact in choice.judgement.evidence} == {
        "checkpoint size, fp8": verdict,
        "checkpoint size, int4": Verdict.NO_GO,
    }


def test_without_attempts_nothing_is_chosen() -> None:
    choice = choose_recipe([])
    assert (choice.recipe, choice.judgement.verdict) == (None, Verdict.NO_GO)


def test_a_checkpoint_without_bytes_is_not_an_attempt() -> None:
    with pytest.raises(ValidationError):
        attempt("fp8", Verdict.GO, 0)


def test_an_error_is_no_lost_rung_the_unquantized_model_does_not_stand_in_for_what_failed():
    choice = choose_recipe(
        [
            RecipeAttempt(recipe="int4", summary="quantize failed: 24 layers are quantized unasked"),
            attempt("fp8", Verdict.NO_GO, 800),
            attempt("none", Verdict.GO, 1600, quantized=False),
        ]
    )
    assert choice.recipe is None
    assert choice.judgement.verdict is Verdict.INCONCLUSIVE
    assert choice.judgement.summary == (
        "Only the unquantized none passed, and int4 could not be judged: quantize failed: 24 layers are quantized "
        "unasked. An error is no loss of accuracy: fix it, or remove int4 from the release's recipes."
    )
    assert len(choice.judgement.evidence) == 3


def test_the_unquantized_model_is_chosen_where_every_quantized_one_was_judged():
    choice = choose_recipe([attempt("fp8", Verdict.NO_GO, 800), attempt("none", Verdict.GO, 1600, quantized=False)])
    assert choice.recipe == "none"
    assert choice.judgement.verdict is Verdict.GO
