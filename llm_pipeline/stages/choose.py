"""Stage `choose`: of a target's ladder, pick the cheapest recipe that passed its accuracy gate."""

from __future__ import annotations

from llm_pipeline.accuracy.choice import RecipeAttempt, choose_recipe
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.logging import get_logger
from llm_pipeline.stages.contract import Stage, StageContext, StageOutput

log = get_logger(__name__)


class ChooseConfig(ConfigModel):
    """What the stage reads.

    Attributes:
        attempts: The recipes that were tried and are legal on the target, the cheapest first.
    """

    attempts: tuple[RecipeAttempt, ...]


def run(context: StageContext[ChooseConfig]) -> StageOutput:
    """Choose; the metric `recipe` is the chosen name, or None."""
    choice = choose_recipe(context.config.attempts)
    for attempt in context.config.attempts:
        verdict = attempt.verdict.value if attempt.verdict else "failed"
        log.info("recipe tried", recipe=attempt.recipe, verdict=verdict, bytes=attempt.bytes, why=attempt.summary)
    log.info(choice.judgement.summary, verdict=choice.judgement.verdict.value)
    return StageOutput(metrics={"recipe": choice.recipe}, judgement=choice.judgement)


STAGE = Stage(name="choose", version=2, config=ChooseConfig, run=run, environment="control", publishes=False)
