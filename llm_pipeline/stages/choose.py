"""Stage `choose`: of a target's ladder, pick the cheapest recipe that passed its accuracy gate."""

from __future__ import annotations

from llm_pipeline.accuracy.choice import RecipeAttempt, choose_recipe
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.model import ConfigModel, Fraction
from llm_pipeline.release.contract import Stage, StageContext, StageOutput

log = get_logger(__name__)


class ChooseConfig(ConfigModel):
    """What the stage reads.

    Attributes:
        attempts: The recipes that were tried and are legal on the target, the cheapest first.
        error: The chance, at most, that one of those that were judged passes if each loses exactly the margin.
    """

    attempts: tuple[RecipeAttempt, ...]
    error: Fraction = 0.0


def run(context: StageContext[ChooseConfig]) -> StageOutput:
    """Choose; the metric `recipe` is the chosen name, or None."""
    choice = choose_recipe(context.config.attempts, context.config.error)
    for attempt in context.config.attempts:
        verdict = attempt.verdict.value if attempt.verdict else "failed"
        tell = log.info if attempt.verdict else log.warning
        tell("recipe tried", recipe=attempt.recipe, verdict=verdict, bytes=attempt.bytes, why=attempt.summary)
    log.info(choice.judgement.summary, verdict=choice.judgement.verdict.value)
    return StageOutput(metrics={"recipe": choice.recipe}, judgement=choice.judgement)


STAGE = Stage(name="choose", version=4, config=ChooseConfig, run=run, environment="control", publishes=False)
