"""Which recipe is released."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from llm_pipeline.accuracy.choice import RecipeAttempt, choose_recipe
from llm_pipeline.verdict import Verdict


def attempt(recipe: str, verdict: Verdict, size: int) -> RecipeAttempt:
    return RecipeAttempt(recipe=recipe, verdict=verdict, bytes=size, summary=f"{recipe} was judged")


def test_the_smallest_recipe_that_passed_is_chosen() -> None:
    choice = choose_recipe(
        [
            attempt("fp8", Verdict.GO, 800),
            attempt("int4", Verdict.NO_GO, 300),
            attempt("int8", Verdict.GO, 700),
            attempt("nvfp4", Verdict.INCONCLUSIVE, 400),
        ]
    )
    assert choice.recipe == "int8"
    assert choice.judgement.verdict is Verdict.GO
    assert "int4 NO_GO" in choice.judgement.summary


def test_equal_sizes_are_decided_by_name_whatever_the_order() -> None:
    attempts = [attempt("b", Verdict.GO, 500), attempt("a", Verdict.GO, 500)]
    assert choose_recipe(attempts).recipe == choose_recipe(attempts[::-1]).recipe == "a"


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
