"""The choice of recipe: of a target's ladder, the first recipe that passed its accuracy gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field

from llm_pipeline.base.errors import Terminal
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


def choose_recipe(attempts: Sequence[RecipeAttempt]) -> tuple[str | None, Judgement]:
    """Choose the first recipe whose gate said GO; None when none did.

    The unquantized model stands in for no recipe that failed before it could be judged: an error is no loss of
    accuracy. Where nothing is chosen the judgement is NO_GO only when every recipe is: one that is undecided, or
    failed, may still be good enough.

    Args:
        attempts: In the order of the ladder, the cheapest first.

    Raises:
        Terminal: Every recipe failed before it could be judged.
    """
    told = {attempt.recipe: f"{attempt.recipe} {attempt.verdict or 'failed'}" for attempt in attempts}
    failed = [attempt for attempt in attempts if attempt.verdict is None]
    if attempts and len(failed) == len(attempts):
        reasons = "; ".join(f"{attempt.recipe}: {attempt.summary}" for attempt in failed)
        raise Terminal(f"no recipe could be judged: {reasons}", hint="the log of the stage that failed has more")
    facts = [_fact(attempt) for attempt in attempts]
    chosen = next((attempt for attempt in attempts if attempt.verdict is Verdict.GO), None)
    if chosen and (chosen.quantized or not failed):
        others = ", ".join(words for recipe, words in told.items() if recipe != chosen.recipe)
        size = f", {chosen.bytes / 1e6:.1f} MB," if chosen.bytes else ""
        summary = f"{chosen.recipe}{size} is the cheapest that passed its accuracy gate"
        return chosen.recipe, judge(f"{summary} (others: {others})." if others else f"{summary}.", [_fact(chosen)])
    summary = f"No recipe passed its accuracy gate: {', '.join(told.values()) or 'none was tried'}."
    if chosen:
        reasons = "; ".join(f"{attempt.recipe} could not be judged: {attempt.summary}" for attempt in failed)
        summary = f"Only the unquantized {chosen.recipe} passed, which stands in for no recipe that failed: {reasons}."
    found = {fact.verdict for fact in facts} or {Verdict.INCONCLUSIVE}
    verdict = next(one for one in (Verdict.ANOMALOUS, Verdict.INCONCLUSIVE, Verdict.NO_GO) if one in found)
    return None, Judgement(verdict=verdict, summary=summary, evidence=tuple(facts))


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
