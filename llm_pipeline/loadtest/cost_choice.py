"""The choice by cost: of the candidates that passed every gate, the one whose tokens cost least. Pure.

Candidates come from the smallest change to the largest: the recipe that takes least away first, and the target's own
arguments before each variant. The first that passed stands; each later one takes its place only where its whole
interval of cost lies below the interval of the one that stands. So what is released is the smallest change, or is shown
to be cheaper than the one that would have been released without it.
"""

from __future__ import annotations

from collections.abc import Sequence

from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.loadtest.outcome import TokenCost


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
        """For people: `fp8`, or `fp8 with kv_fp8`."""
        return f"{self.recipe} with {self.variant}" if self.variant else self.recipe

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
    chosen: CostTrial | None = None
    passed = [trial for trial in trials if trial.verdict is Verdict.GO and trial.cost is not None]
    for trial in passed:
        if chosen is None or _is_cheaper(trial, chosen):
            chosen = trial
    told = "; ".join(trial.in_words.rstrip(".") for trial in trials if trial is not chosen)
    if chosen is None:
        worst = {trial.verdict or Verdict.INCONCLUSIVE for trial in trials} - {Verdict.GO}
        verdict = worst.pop() if len(worst) == 1 else Verdict.INCONCLUSIVE
        return None, Judgement(verdict=verdict, summary=f"No candidate passed its trial: {told or 'none was tried'}.")
    summary = f"{chosen.in_words} a million output tokens: nothing is shown to be cheaper."
    facts = [_fact(chosen), *(_fact(trial) for trial in passed if trial is not chosen)]
    return chosen, judge(f"{summary} Others: {told}." if told else summary, facts)


def _is_cheaper(trial: CostTrial, than: CostTrial) -> bool:
    return trial.cost is not None and than.cost is not None and trial.cost.upper < than.cost.lower


def _fact(trial: CostTrial) -> Evidence:
    cost = trial.cost
    return Evidence(
        name=f"cost of a million output tokens, {trial.name}",
        verdict=Verdict.GO,
        measured=cost and cost.estimate,
        lower=cost and cost.lower,
        upper=cost and cost.upper,
        unit=cost.currency if cost else "",
        samples=1,
    )
