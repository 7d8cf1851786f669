"""The largest batches and the longest requests that a target holds under a recipe. Pure."""

from __future__ import annotations

from llm_pipeline.base.records import Frozen
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.target import Target
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.memory import MemoryFit
from llm_pipeline.planning.target_memory import judge_memory

_LENGTHS = (2048, 8192, 32_768, 131_072)


class BatchAtLength(Frozen):
    """How many requests of so many tokens, prompt and output together, are held at once."""

    tokens: int
    batch: int


class Capacity(Frozen):
    """What fits beside the weights.

    Attributes:
        batches: The largest batch by length: of the target's own longest request, and of usual lengths.
        sequences: The target's `limits.maximum_sequences`.
        longest_request: Tokens of the longest requests of which so many fit at once, in whole blocks, and no more than
            the model's context; 0 when not even the shortest do.
    """

    batches: tuple[BatchAtLength, ...]
    sequences: int
    longest_request: int


def capacity(target: Target, recipe: QuantizationRecipe, facts: ModelFacts) -> Capacity | None:
    """What a target holds; None when the model cannot be split as the target says.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    if judge_memory(target, recipe, facts)[0] is None:
        return None
    wanted = min(target.limits.maximum_tokens_per_request, facts.context_length)
    lengths = sorted({wanted, *(length for length in _LENGTHS if length <= facts.context_length)})
    fits = [(length, _fit(target, recipe, facts, length)) for length in lengths]
    return Capacity(
        batches=tuple(BatchAtLength(tokens=length, batch=fit.largest_batch) for length, fit in fits if fit),
        sequences=target.limits.maximum_sequences,
        longest_request=_longest(target, recipe, facts),
    )


def _longest(target: Target, recipe: QuantizationRecipe, facts: ModelFacts) -> int:
    """By bisection: more tokens never fit better."""
    block = target.runtime.kv_cache.tokens_per_block
    held, too_long = 0, facts.context_length // block + 1
    while too_long - held > 1:
        middle = (held + too_long) // 2
        fit = _fit(target, recipe, facts, middle * block)
        held, too_long = (middle, too_long) if fit and fit.fits else (held, middle)
    return held * block


def _fit(target: Target, recipe: QuantizationRecipe, facts: ModelFacts, tokens: int) -> MemoryFit | None:
    limits = target.limits.model_copy(update={"maximum_tokens_per_request": tokens})
    return judge_memory(target.model_copy(update={"limits": limits}), recipe, facts)[0]
