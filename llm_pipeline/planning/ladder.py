"""The ladder: in which order a release's recipes are tried, over all targets and on each of them. Pure.

What is cheap is the size of the checkpoint (exact where the model's shape is known, the bits of a weight otherwise) or
the predicted time of a token on the target. There is no prediction for CPUs: their ladders go by size.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from llm_pipeline.config.policy import SpeedPolicy
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.config.target import Target
from llm_pipeline.planning.memory import weight_bytes
from llm_pipeline.planning.model_shape import ModelShape, known_shape
from llm_pipeline.planning.speed import relative_speed
from llm_pipeline.planning.weight_storage import bits_per_weight

_PLAIN = QuantizationRecipe(name="none", weights="none")


def climbing_order(release: ResolvedRelease) -> tuple[str, ...]:
    """Names of all recipes, cheapest first over all targets together; equally cheap ones as the config has them.

    A recipe's cost is the geometric mean of its costs on the targets, so that one which is cheaper everywhere comes
    first.

    Raises:
        ConfigError: An accelerator or a recipe of modelopt's is unknown.
    """
    return _cheapest_first(release, release.targets)


def target_order(release: ResolvedRelease, target: Target) -> tuple[str, ...]:
    """The same on one target alone.

    Raises:
        ConfigError: As `climbing_order`.
    """
    return _cheapest_first(release, (target,))


def decoded_together(release: ResolvedRelease, target: Target) -> int:
    """Requests that speed is predicted for: the policy's, or as many as the target holds if that is fewer."""
    wanted = release.policy.speed or SpeedPolicy()
    return min(wanted.requests, target.limits.maximum_sequences)


def _cheapest_first(release: ResolvedRelease, targets: Sequence[Target]) -> tuple[str, ...]:
    shape = known_shape(release.model.id)
    costs = {
        recipe.name: (sum(_log_cost(release, recipe, target, shape) for target in targets), _size(recipe, shape))
        for recipe in release.recipes
    }
    return tuple(sorted(costs, key=lambda name: costs[name]))


def _log_cost(release: ResolvedRelease, recipe: QuantizationRecipe, target: Target, shape: ModelShape | None) -> float:
    """Logarithm of a recipe's cost by that of no quantization."""
    if release.ladder.order == "speed" and shape:
        speed = relative_speed(shape, target, recipe, decoded_together(release, target))
        if speed is not None:
            return -log(speed)
    return log(_size(recipe, shape) / _size(_PLAIN, shape))


def _size(recipe: QuantizationRecipe, shape: ModelShape | None) -> float:
    return weight_bytes(shape, recipe) if shape else bits_per_weight(recipe)
