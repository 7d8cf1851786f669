"""The part of the plan's table that says how fast a target will be, and how fast it can be at best."""

from __future__ import annotations

from llm_pipeline.planning.aiconfigurator import Prediction
from llm_pipeline.planning.cost_table import aligned
from llm_pipeline.planning.model import RecipePlan, TargetPlan
from llm_pipeline.planning.target_speed import Throughput


def throughput_lines(target: TargetPlan) -> list[str]:
    """Output tokens a second by recipe, expected and at best; nothing for a CPU or a model of unknown sizes."""
    known = [(recipe, recipe.throughput) for recipe in target.recipes if recipe.legal and recipe.throughput]
    if not known:
        return []
    bounds = known[0][1].bounds
    many = f"x {bounds.requests}"
    bound = ("bound alone", f"bound {many}", "bound, any length", "first token from", "each from")
    rows = [_row(recipe, figures) for recipe, figures in known]
    lengths = f"{bounds.prompt_tokens} in, {bounds.output_tokens} out"
    title = f"  output tokens a second at {lengths}: expected, and the bounds that no engine can beat"
    asked = [(recipe.recipe, recipe.prediction) for recipe, _ in known if recipe.prediction]
    return [title, *aligned([("recipe", "by 16 bit", "alone", many, *bound), *rows], 1), *_prediction_lines(asked)]


def _row(recipe: RecipePlan, figures: Throughput) -> tuple[str, ...]:
    bounds, speed = figures.bounds, recipe.speed
    return (
        recipe.recipe,
        f"{speed.alone:.2f}x, {speed.together:.2f}x at {speed.requests}" if speed else "-",
        f"{figures.alone:.0f}",
        f"{figures.together:.0f}",
        f"{bounds.alone:.0f}",
        f"{bounds.together:.0f}",
        f"{bounds.ceiling:.0f}",
        f"{bounds.prompt_milliseconds:.0f} ms",
        f"{bounds.token_milliseconds:.2f} ms",
    )


def _prediction_lines(asked: list[tuple[str, Prediction]]) -> list[str]:
    """AIConfigurator's, in a line each; a problem that all share only once."""
    problems = dict.fromkeys(prediction.problem for _, prediction in asked)
    if len(problems) == 1 and (problem := next(iter(problems))):
        return [f"  {problem}"]
    return [f"  AIConfigurator, {name}: {_figures(prediction)}" for name, prediction in asked]


def _figures(prediction: Prediction) -> str:
    if prediction.tokens_per_second is None:
        return prediction.problem
    return (
        f"{prediction.tokens_per_second:.0f} tokens/s with {prediction.requests} at once, first token after "
        f"{prediction.first_token_milliseconds:.0f} ms, then one every {prediction.token_milliseconds:.1f} ms"
    )
