"""Which recipe is released."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from llm_pipeline.base.errors import Terminal
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.release.choice import RecipeAttempt, choose_recipe, recipes_in_words
from llm_pipeline.release.contract import StageRequest, StageResult
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


def test_without_attempts_nothing_is_chosen() -> None:
    recipe, judgement = choose_recipe([])
    assert (recipe, judgement.verdict) == (None, Verdict.INCONCLUSIVE)


def test_a_checkpoint_without_bytes_is_not_an_attempt() -> None:
    with pytest.raises(ValidationError):
        attempt("fp8", Verdict.GO, 0)


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


def test_the_unquantized_model_is_chosen_where_every_quantized_one_was_judged():
    attempts = [attempt("fp8", Verdict.NO_GO, 800), attempt("none", Verdict.GO, 1600, quantized=False)]
    recipe, judgement = choose_recipe(attempts)
    assert (recipe, judgement.verdict) == ("none", Verdict.GO)


def test_the_chosen_recipe_is_a_metric_of_the_stage_and_the_judgement_a_gate(tmp_path: Path) -> None:
    attempts = [attempt("fp8", Verdict.GO, 800), attempt("int4", Verdict.NO_GO, 300)]
    request = StageRequest(
        release_id="demo",
        stage="choose",
        config={"attempts": [one.model_dump(mode="json") for one in attempts]},
        store=f"file://{tmp_path}/store",
        work_root=str(tmp_path / "work"),
    )
    result = execute(request)
    assert isinstance(result, StageResult)
    assert result.metrics == {"recipe": "fp8"}
    assert result.judgement is not None
    assert result.judgement.verdict is Verdict.GO
