"""Stage `choose`: of a target's ladder, pick the cheapest recipe that passed its gates, by size or by measured cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_pipeline.base.records import Metric
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.release.candidate import Candidate
from llm_pipeline.release.choice import CostTrial, RecipeAttempt, choose_by_cost, choose_recipe
from llm_pipeline.release.contract import Inputs, Stage, StageContext, StageOutput

if TYPE_CHECKING:
    from llm_pipeline.release_progress import ReleaseProgress


class ChooseConfig(ConfigModel):
    """What the stage reads.

    Attributes:
        attempts: The recipes that were tried and are legal on the target, the cheapest first.
        trials: The candidates that were tried, from the smallest change to the largest; None for a choice by size.
    """

    attempts: tuple[RecipeAttempt, ...]
    trials: tuple[CostTrial, ...] | None = None


def run(context: StageContext[ChooseConfig]) -> StageOutput:
    """Choose; the metric `recipe` is the chosen name, or None, and `variant` that of the target's variant.

    Raises:
        Terminal: Every recipe failed before it could be judged.
    """
    recipe, judgement = choose_recipe(context.config.attempts)
    if recipe is None or context.config.trials is None:
        return StageOutput(metrics={"recipe": recipe}, judgement=judgement)
    chosen, judgement = choose_by_cost(context.config.trials)
    if chosen is None or chosen.cost is None:
        return StageOutput(metrics={"recipe": None}, judgement=judgement)
    metrics: dict[str, Metric] = {"recipe": chosen.recipe, "variant": chosen.variant or None, **chosen.cost.metrics}
    return StageOutput(metrics=metrics, judgement=judgement)


def request(flow: ReleaseProgress, subject: str) -> tuple[ChooseConfig, Inputs]:
    """What the stage is given."""
    ladder = flow.record.ladders.get(subject, ())
    attempts = tuple(filter(None, (_attempt(flow, recipe) for recipe in ladder)))
    if flow.release.ladder.objective == "size":
        return ChooseConfig(attempts=attempts), {}
    variants = ("", *flow.release.target(subject).variants)
    tried = (flow.trial(Candidate(subject, recipe, variant)) for recipe in reversed(ladder) for variant in variants)
    return ChooseConfig(attempts=attempts, trials=tuple(filter(None, tried))), {}


def _attempt(flow: ReleaseProgress, recipe: str) -> RecipeAttempt | None:
    """How a recipe fared; None when it was not tried."""
    if judgement := flow.judgement_of(recipe):
        size = int(flow.result("quantize", recipe).metrics["bytes"] or 0)
        return RecipeAttempt(
            recipe=recipe,
            verdict=judgement.verdict,
            bytes=size,
            summary=judgement.summary,
            quantized=all(given.weights != "none" for given in flow.release.recipes if given.name == recipe),
        )
    if failure := flow.failure_of(recipe):
        return RecipeAttempt(recipe=recipe, summary=f"{failure.stage} failed: {failure.error.told}")
    return None


STAGE = Stage(name="choose", version=7, config=ChooseConfig, request=request, run=run, publishes=False)
