"""Stage `choose`: pick the cheapest recipe that passed its accuracy gate."""

from __future__ import annotations

from llm_pipeline.accuracy.choice import RecipeAttempt, choose_recipe
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.logging import get_logger
from llm_pipeline.stages.contract import Stage, StageContext, StageOutput

log = get_logger(__name__)


class ChooseConfig(ConfigModel):
    """The recipes that were tried, with their verdicts and sizes."""

    attempts: tuple[RecipeAttempt, ...]


def run(context: StageContext[ChooseConfig]) -> StageOutput:
    """Choose; the metric `recipe` is the chosen name, or None."""
    choice = choose_recipe(context.config.attempts)
    for attempt in context.config.attempts:
        log.info("recipe tried", recipe=attempt.recipe, verdict=attempt.verdict.value, megabytes=attempt.bytes / 1e6)
    log.info(choice.judgement.summary, verdict=choice.judgement.verdict.value)
    return StageOutput(metrics={"recipe": choice.recipe}, judgement=choice.judgement)


STAGE = Stage(name="choose", version=1, config=ChooseConfig, run=run, environment="control")
