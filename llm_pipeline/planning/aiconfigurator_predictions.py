"""AIConfigurator's predictions, put into the targets of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.planning.aiconfigurator import Prediction, installed_command, predict
from llm_pipeline.planning.model import RecipePlan, TargetPlan

_AT_ONCE = 4


def with_predictions(release: ResolvedRelease, targets: Sequence[TargetPlan]) -> tuple[TargetPlan, ...]:
    """The targets with a prediction for every recipe that is legal there; CPU targets as they are."""
    command = installed_command()

    def ask(target: TargetPlan, recipe: RecipePlan) -> Prediction:
        return predict(command, release.model.id, release.target(target.name), release.recipe(recipe.recipe))

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asked = {
            (target.name, recipe.recipe): pool.submit(ask, target, recipe)
            for target in targets
            for recipe in target.recipes
            if recipe.legal and target.accelerators
        }
    found = {cell: future.result() for cell, future in asked.items()}

    def with_prediction(target: TargetPlan, recipe: RecipePlan) -> RecipePlan:
        return recipe.model_copy(update={"prediction": found.get((target.name, recipe.recipe))})

    return tuple(
        target.model_copy(update={"recipes": tuple(with_prediction(target, recipe) for recipe in target.recipes)})
        for target in targets
    )
