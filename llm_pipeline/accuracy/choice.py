"""The choice of recipe: of those that passed their accuracy gate, the one with the fewest bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from llm_pipeline.config.model import ConfigModel, Name
from llm_pipeline.verdict import Evidence, Judgement, Verdict, judge


class RecipeAttempt(ConfigModel):
    """One recipe after its accuracy gate.

    Attributes:
        recipe: The recipe's name.
        verdict: What its accuracy gate said.
        bytes: Size of its checkpoint.
        summary: The gate's sentence.
    """

    recipe: Name
    verdict: Verdict
    bytes: int = Field(ge=1)
    summary: str = ""


@dataclass(frozen=True)
class Choice:
    """The chosen recipe, or None, with the reasons."""

    recipe: str | None
    judgement: Judgement


def choose_recipe(attempts: Sequence[RecipeAttempt]) -> Choice:
    """Choose the smallest checkpoint whose gate said GO; equal sizes are decided by the recipe's name.

    When none passed the judgement is NO_GO, with every attempt in its evidence: nothing is released on a verdict
    that is not GO, whatever kept it from being one.
    """
    passed = sorted((attempt for attempt in attempts if attempt.verdict is Verdict.GO), key=_cost)
    if not passed:
        facts = tuple(_fact(attempt) for attempt in sorted(attempts, key=_cost))
        return Choice(None, Judgement(verdict=Verdict.NO_GO, summary=_refusal(attempts), evidence=facts))
    best = passed[0]
    others = sorted((attempt for attempt in attempts if attempt is not best), key=_cost)
    compared = "; ".join(f"{other.recipe} {other.verdict} at {_megabytes(other)}" for other in others)
    summary = f"{best.recipe}, {_megabytes(best)}, is the smallest that passed its accuracy gate"
    return Choice(
        best.recipe, judge(f"{summary} (others: {compared})." if others else f"{summary}.", map(_fact, passed))
    )


def _cost(attempt: RecipeAttempt) -> tuple[int, str]:
    return attempt.bytes, attempt.recipe


def _fact(attempt: RecipeAttempt) -> Evidence:
    return Evidence(
        name=f"checkpoint size, {attempt.recipe}",
        verdict=attempt.verdict,
        measured=float(attempt.bytes),
        unit="bytes",
        samples=1,
        detail=attempt.summary,
    )


def _refusal(attempts: Sequence[RecipeAttempt]) -> str:
    if not attempts:
        return "No recipe was tried."
    tried = ", ".join(f"{attempt.recipe} {attempt.verdict}" for attempt in sorted(attempts, key=_cost))
    return f"No recipe passed its accuracy gate: {tried}."


def _megabytes(attempt: RecipeAttempt) -> str:
    return f"{attempt.bytes / 1e6:.1f} MB"
