"""The ladder: in which order a release's recipes are tried, over all targets and on each of them. Pure.

What is cheap is the size of the checkpoint (exact where the model's sizes are known, the bits of a weight otherwise) or
the predicted time of a token on the target. There is no prediction for CPUs: their ladders go by size.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from llm_pipeline.config.policy import SpeedPolicy
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.config.target import Target
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.model_facts.reader import stated_facts
from llm_pipeline.planning.memory import weight_bytes
from llm_pipeline.planning.speed import relative_speed
from llm_pipeline.planning.weight_storage import bits_per_weight

_PLAIN = QuantizationRecipe(name="none", weights="none")


def climbing_order(release: ResolvedRelease, facts: ModelFacts | None = None) -> tuple[str, ...]:
    """Names of all recipes, cheapest first over all targets together; equally cheap ones as the config has them.

    Without facts, by the sizes that the release config states, if it does: a DAG is drawn before anything is read.

    A recipe's cost is the geometric mean of its costs on the targets, so that one which is cheaper everywhere comes
    first.

    Raises:
        ConfigError: An accelerator or a recipe of modelopt's is unknown.
    """
    return _cheapest_first(release, release.targets, facts or stated_facts(release.model.sizes))


def target_order(release: ResolvedRelease, target: Target, facts: ModelFacts | None = None) -> tuple[str, ...]:
    """The same on one target alone.

    Raises:
        ConfigError: As `climbing_order`.
    """
    return _cheapest_first(release, (target,), facts or stated_facts(release.model.sizes))


def decoded_together(release: ResolvedRelease, target: Target) -> int:
    """Requests that speed is predicted for: the policy's, or as many as the target holds if that is fewer."""
    wanted = release.policy.speed or SpeedPolicy()
    return min(wanted.requests, target.limits.maximum_sequences)


def _cheapest_first(release: ResolvedRelease, targets: Sequence[Target], facts: ModelFacts | None) -> tuple[str, ...]:
    costs = {
        recipe.name: (sum(_log_cost(release, recipe, target, facts) for target in targets), _size(recipe, facts))
        for recipe in release.recipes
    }
    return tuple(sorted(costs, key=lambda name: costs[name]))


def _log_cost(release: ResolvedRelease, recipe: QuantizationRecipe, target: Target, facts: ModelFacts | None) -> float:
    """Logarithm of a recipe's cost by that of no quantization."""
    if release.ladder.order == "speed" and facts:
        speed = relative_speed(facts, target, recipe, decoded_together(release, target))
        if speed is not None:
            return -log(speed)
    return log(_size(recipe, facts) / _size(_PLAIN, facts))


def _size(recipe: QuantizationRecipe, facts: ModelFacts | None) -> float:
    return weight_bytes(facts, recipe) if facts else bits_per_weight(recipe)
