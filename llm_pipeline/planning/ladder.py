"""The ladder: in which order a release's recipes are tried. Pure.

The smallest checkpoint comes first: by its bytes where the model's sizes are known, by the bits of a weight otherwise.
"""

from __future__ import annotations

from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.model_facts.reader import stated_facts
from llm_pipeline.planning.memory import bits_per_weight, weight_bytes


def climbing_order(release: ResolvedRelease, facts: ModelFacts | None = None) -> tuple[str, ...]:
    """Names of all recipes, the smallest first; equally small ones as the config has them.

    Without facts, by the sizes that the release config states, if it does: a DAG is drawn before anything is read.

    Raises:
        ConfigError: A recipe of modelopt's is unknown.
    """
    known = facts or stated_facts(release.model.sizes)
    sizes = {
        recipe.name: weight_bytes(known, recipe) if known else bits_per_weight(recipe) for recipe in release.recipes
    }
    return tuple(sorted(sizes, key=lambda name: sizes[name]))
