"""Stage `choose`: of a target's ladder, pick the cheapest recipe that passed its accuracy gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from llm_pipeline.accuracy.choice import RecipeAttempt, choose_recipe
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.model import ConfigModel, Fraction
from llm_pipeline.release.contract import Stage, StageContext, StageOutput
from llm_pipeline.stages.request_parts import sharing_rungs

if TYPE_CHECKING:
    from llm_pipeline.flow import ReleaseProgress

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


def request(flow: ReleaseProgress, subject: str) -> tuple[ChooseConfig, Mapping[str, ArtifactRef]]:
    """What the stage is given."""
    attempts = (_attempt(flow, recipe) for recipe in flow.record.ladders.get(subject, ()))
    tried = tuple(attempt for attempt in attempts if attempt)
    judged = sum(attempt.verdict is not None for attempt in tried)
    return ChooseConfig(attempts=tried, error=_ladder_error(flow, judged)), {}


def _ladder_error(flow: ReleaseProgress, judged: int) -> float:
    from llm_pipeline.accuracy.error_budget import policy_at, share_of_error

    policy = flow.release.policy.accuracy
    own = policy_at(policy, share_of_error(policy, 1, sharing_rungs(flow)))
    return round(1.0 - own.confidence**judged, 6)


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
        return RecipeAttempt(recipe=recipe, summary=f"{failure.stage} failed: {failure.error.message}")
    return None


STAGE = Stage(
    name="choose", version=4, config=ChooseConfig, request=request, run=run, environment="control", publishes=False
)
