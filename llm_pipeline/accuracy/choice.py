"""The choice of recipe: of a target's ladder, the first recipe that passed its accuracy gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.config.model import ConfigModel, Name


class RecipeAttempt(ConfigModel):
    """One recipe after it was tried.

    Attributes:
        recipe: The recipe's name.
        verdict: What its accuracy gate said; None when it failed before the gate could.
        bytes: Size of its checkpoint; None when it failed.
        summary: The gate's sentence, or the error.
        quantized: Whether it quantizes at all: the baseline itself stands in for no recipe that failed.
    """

    recipe: Name
    verdict: Verdict | None = None
    bytes: int | None = Field(default=None, ge=1)
    summary: str = ""
    quantized: bool = True


@dataclass(frozen=True)
class Choice:
    """The chosen recipe, or None, with the reasons."""

    recipe: str | None
    judgement: Judgement


def choose_recipe(attempts: Sequence[RecipeAttempt]) -> Choice:
    """Choose the first recipe whose gate said GO.

    When none passed the judgement is NO_GO, with every attempt in its evidence: nothing is released on a verdict
    that is not GO, whatever kept it from being one. When only the unquantized model passed, and a recipe failed before
    it could be judged, the judgement is INCONCLUSIVE: an error is no loss of accuracy.

    Args:
        attempts: In the order of the ladder, the cheapest first.
    """
    chosen = next((attempt for attempt in attempts if attempt.verdict is Verdict.GO), None)
    if chosen is None:
        facts = tuple(_fact(attempt) for attempt in attempts)
        return Choice(None, Judgement(verdict=Verdict.NO_GO, summary=_refusal(attempts), evidence=facts))
    if not chosen.quantized and (failed := [attempt for attempt in attempts if attempt.verdict is None]):
        facts = tuple(_fact(attempt) for attempt in attempts)
        return Choice(None, Judgement(verdict=Verdict.INCONCLUSIVE, summary=_unjudged(chosen, failed), evidence=facts))
    others = ", ".join(_in_words(attempt) for attempt in attempts if attempt is not chosen)
    size = f", {chosen.bytes / 1e6:.1f} MB," if chosen.bytes else ""
    summary = f"{chosen.recipe}{size} is the cheapest that passed its accuracy gate"
    sentence = f"{summary} (others: {others})." if others else f"{summary}."
    return Choice(chosen.recipe, judge(sentence, [_fact(chosen)]))


def recipes_in_words(chosen: Mapping[str, str]) -> str:
    """The recipes that targets chose: `fp8`, or `fp8 on h200, int4_awq on l40s` when they differ; empty for none."""
    recipes = dict.fromkeys(chosen.values())
    if len(recipes) <= 1:
        return next(iter(recipes), "")
    on = {recipe: ", ".join(target for target, name in chosen.items() if name == recipe) for recipe in recipes}
    return "; ".join(f"{recipe} on {targets}" for recipe, targets in on.items())


def _fact(attempt: RecipeAttempt) -> Evidence:
    return Evidence(
        name=f"checkpoint size, {attempt.recipe}",
        verdict=attempt.verdict or Verdict.INCONCLUSIVE,
        measured=attempt.bytes,
        unit="bytes",
        samples=1 if attempt.bytes else 0,
        detail=attempt.summary,
    )


def _refusal(attempts: Sequence[RecipeAttempt]) -> str:
    if not attempts:
        return "No recipe was tried."
    return f"No recipe passed its accuracy gate: {', '.join(map(_in_words, attempts))}."


def _unjudged(chosen: RecipeAttempt, failed: Sequence[RecipeAttempt]) -> str:
    names, errors = ", ".join(attempt.recipe for attempt in failed), "; ".join(attempt.summary for attempt in failed)
    return (
        f"Only the unquantized {chosen.recipe} passed, and {names} could not be judged: {errors}. An error is no loss "
        f"of accuracy: fix it, or remove {names} from the release's recipes."
    )


def _in_words(attempt: RecipeAttempt) -> str:
    return f"{attempt.recipe} {attempt.verdict or 'failed'}"
