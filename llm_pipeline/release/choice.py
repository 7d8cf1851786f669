"""The choice of what is released on a target: by size, of its recipes, or by cost, of its candidates. Pure.

By size it is the first recipe of the ladder that passed its accuracy gate.

By cost, candidates come from the smallest change to the largest: the recipe that takes least away first, and the
target's own arguments before each variant. The first that passed stands; each later one takes its place only where its
whole interval of cost lies below the interval of the one that stands. So what is released is the smallest change, or is
shown to be cheaper than the one that would have been released without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field

from llm_pipeline.base.errors import Terminal
from llm_pipeline.base.quantities import byte_size
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.config.model import ConfigModel, Name
from llm_pipeline.loadtest.outcome import TokenCost
from llm_pipeline.release.candidate import in_words


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
    facts = [_size(attempt) for attempt in attempts]
    chosen = next((attempt for attempt in attempts if attempt.verdict is Verdict.GO), None)
    if chosen and (chosen.quantized or not failed):
        others = ", ".join(words for recipe, words in told.items() if recipe != chosen.recipe)
        size = f", {byte_size(chosen.bytes)}," if chosen.bytes else ""
        summary = f"{chosen.recipe}{size} is the cheapest that passed its accuracy gate"
        return chosen.recipe, judge(f"{summary} (others: {others})." if others else f"{summary}.", [_size(chosen)])
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


def _size(attempt: RecipeAttempt) -> Evidence:
    return Evidence(
        name=f"checkpoint size, {attempt.recipe}",
        verdict=attempt.verdict or Verdict.INCONCLUSIVE,
        measured=attempt.bytes,
        unit="bytes",
        samples=1 if attempt.bytes else 0,
        detail=attempt.summary,
    )


class CostTrial(ConfigModel):
    """One candidate after its trial.

    Attributes:
        recipe: Its recipe.
        variant: The target's variant; empty for its own arguments.
        verdict: The worst of its gates up to the load test; None where a stage ended with an error.
        cost: Of a million output tokens; None where the load test confirmed no rate.
        summary: Why it did not pass.
    """

    recipe: str
    variant: str = ""
    verdict: Verdict | None = None
    cost: TokenCost | None = None
    summary: str = ""

    @property
    def name(self) -> str:
        """For people."""
        return in_words(self.recipe, self.variant)

    @property
    def in_words(self) -> str:
        """What became of it."""
        if self.verdict is Verdict.GO and self.cost is not None:
            return f"{self.name} {self.cost.in_words}"
        return f"{self.name} {self.verdict or 'failed'}: {self.summary or 'no price of its hour is known'}"


def choose_by_cost(trials: Sequence[CostTrial]) -> tuple[CostTrial | None, Judgement]:
    """Choose; None when no candidate passed with a cost.

    Args:
        trials: From the smallest change to the largest.
    """
    passed = [(trial, trial.cost) for trial in trials if trial.verdict is Verdict.GO and trial.cost is not None]
    if not passed:
        told = "; ".join(trial.in_words.rstrip(".") for trial in trials)
        worst = {trial.verdict or Verdict.INCONCLUSIVE for trial in trials} - {Verdict.GO}
        verdict = worst.pop() if len(worst) == 1 else Verdict.INCONCLUSIVE
        return None, Judgement(verdict=verdict, summary=f"No candidate passed its trial: {told or 'none was tried'}.")
    chosen, stands = passed[0]
    for trial, cost in passed:
        if cost.upper < stands.lower:
            chosen, stands = trial, cost
    told = "; ".join(trial.in_words.rstrip(".") for trial in trials if trial is not chosen)
    summary = f"{chosen.in_words} a million output tokens: nothing is shown to be cheaper."
    facts = [_cost(chosen, stands), *(_cost(trial, cost) for trial, cost in passed if trial is not chosen)]
    return chosen, judge(f"{summary} Others: {told}." if told else summary, facts)


def _cost(trial: CostTrial, cost: TokenCost) -> Evidence:
    return Evidence(
        name=f"cost of a million output tokens, {trial.name}",
        verdict=Verdict.GO,
        measured=cost.estimate,
        lower=cost.lower,
        upper=cost.upper,
        unit=cost.currency,
        samples=1,
    )
