"""Sizes of weights and KV caches, and whether they fit. Pure arithmetic; every figure is in bytes.

Weights: the linear modules inside the layers take the recipe's format; embeddings, norms, biases, the head where the
recipe excludes it, and every module that an exclude pattern names stay at the baseline's precision, as modelopt
exports them. A checkpoint that is quantized already stays as it is. What layers keep of a sequence is in
`model_facts/layout.py`. A layer with a sliding window holds no more tokens than the window has only where the target
tells its engine so (`attention_windows`): engines keep all of them otherwise.

Experts are shared evenly by all ranks of a stage, whichever parallelism spreads them. Not counted: a draft model of
speculative decoding, and what attention data parallelism copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import ceil

from llm_pipeline.base.records import Frozen
from llm_pipeline.config.quantization import KvCacheFormat, QuantizationRecipe
from llm_pipeline.config.target import TOKENS_PER_BLOCK, EngineLimits, KvCacheOptions, Parallelism
from llm_pipeline.model_facts.facts import CacheGroup, ModelFacts
from llm_pipeline.planning.weight_storage import (
    HALF_PRECISION,
    head_parameters,
    layer_parameters,
    mixture,
    stored_bytes,
)

_KV_BYTES: dict[KvCacheFormat, float] = {"fp8": 1.0, "int8": 1.0, "nvfp4": 0.5 + 1 / 16}
"""Bytes of one element of a quantized KV cache, the scale of a block of 16 included."""


class Engine(Frozen):
    """What decides an engine's memory besides the model and the recipe.

    Attributes:
        capacity: Memory of one rank, in bytes.
        runtime: What the runtime takes before any weight is loaded, in bytes.
        unquantized_bytes: Bytes of one unquantized weight once loaded.
        kv_bytes: Bytes of one element of an unquantized KV cache.
        quantizes_kv: Whether the engine stores the KV cache in the format that the recipe asks for.
        kv_cache: How much of the memory the KV cache may take.
        shares_whole_memory: The fraction of `kv_cache` is of the capacity, for weights, runtime and cache together.
    """

    capacity: int
    runtime: int
    unquantized_bytes: int = HALF_PRECISION
    kv_bytes: int = HALF_PRECISION
    quantizes_kv: bool = True
    kv_cache: KvCacheOptions = KvCacheOptions()
    shares_whole_memory: bool = False


class MemoryFit(Frozen):
    """The memory of one rank, in bytes.

    Attributes:
        capacity: What the device has.
        weights: Weights of the fullest rank.
        runtime: Context, graphs and activations, by a stated model.
        kv_per_token: KV cache of one token.
        kv_per_request: KV cache of one request of full length.
        kv_available: What the KV cache may take.
        kv_wanted: KV cache of `limits.maximum_sequences` requests of full length.
        largest_batch: Requests of full length that fit at once.
    """

    capacity: int
    weights: int
    runtime: int
    kv_per_token: int
    kv_per_request: int
    kv_available: int
    kv_wanted: int
    largest_batch: int

    @property
    def fits(self) -> bool:
        """Whether what the target's limits ask for can be held at once."""
        return self.kv_wanted <= self.kv_available


def weight_bytes(facts: ModelFacts, recipe: QuantizationRecipe) -> int:
    """Bytes of a checkpoint's weights under a recipe."""
    if facts.stored_format and recipe.weights == "none":
        return facts.stored_bytes
    heads = 0 if facts.tied_embeddings else _head_bytes(facts, recipe, HALF_PRECISION)
    edges = (facts.embedding_parameters + facts.other_parameters) * HALF_PRECISION
    return _layer_bytes(facts, recipe, HALF_PRECISION) + edges + heads


def kv_bytes_per_token(facts: ModelFacts, element_bytes: float = HALF_PRECISION) -> int:
    """KV cache of one token over all layers and heads, in bytes."""
    return ceil(facts.kv_elements_per_token * element_bytes)


def kv_element_bytes(recipe: QuantizationRecipe, unquantized_bytes: int = HALF_PRECISION) -> float:
    """Bytes of one element of the KV cache that a recipe asks for."""
    return _KV_BYTES.get(recipe.kv_cache, unquantized_bytes)


def rank_weight_bytes(
    facts: ModelFacts, recipe: QuantizationRecipe, parallelism: Parallelism, unquantized_bytes: int = HALF_PRECISION
) -> int:
    """Bytes of the weights that the fullest rank holds: the embeddings' or the head's stage of the pipeline."""
    stages = parallelism.pipeline
    layers = _layer_bytes(facts, recipe, unquantized_bytes) * _fullest_share(facts, stages)
    embeddings = facts.embedding_parameters * unquantized_bytes
    head = _head_bytes(facts, recipe, unquantized_bytes)
    both = embeddings + (0 if facts.tied_embeddings else head)
    edges = max(embeddings, head) if stages > 1 else both
    copied = facts.other_parameters * unquantized_bytes
    if facts.stored_format and recipe.weights == "none" and unquantized_bytes == HALF_PRECISION:
        layers = max(0, facts.stored_bytes - both - copied) * _fullest_share(facts, stages)
    return ceil((layers + edges) / parallelism.tensor) + copied


def rank_kv_bytes_per_token(facts: ModelFacts, parallelism: Parallelism, element_bytes: float) -> int:
    """KV cache of one token on the fullest rank; heads are copied where there are more ranks than heads."""
    elements = _by_layer(facts, lambda cache: ceil(cache.heads / parallelism.tensor) * cache.elements)
    return ceil(_fullest_sum(elements, parallelism.pipeline) * element_bytes)


def rank_kv_bytes_per_request(facts: ModelFacts, parallelism: Parallelism, element_bytes: float, tokens: int) -> int:
    """What one request keeps on the fullest rank: whole blocks of tokens in each layer, and states of fixed size."""
    elements = _by_layer(facts, lambda cache: ceil(cache.heads / parallelism.tensor) * cache.elements)
    states = _by_layer(facts, lambda cache: ceil(cache.state_bytes / parallelism.tensor))
    whole = ceil(tokens / TOKENS_PER_BLOCK) * TOKENS_PER_BLOCK
    held = [elements[layer] * element_bytes * whole + states[layer] for layer in range(facts.layers)]
    return ceil(_fullest_sum(held, parallelism.pipeline))


def activation_bytes(facts: ModelFacts, limits: EngineLimits, parallelism: Parallelism) -> int:
    """Peak of the activations, by a simple model: one MLP of a full step at 16 bit, and the logits at 32 bit."""
    width = 2 * facts.hidden_size + 3 * facts.intermediate_size // parallelism.tensor
    logits = limits.maximum_sequences * facts.vocabulary_size * 4
    return limits.maximum_batched_tokens * width * HALF_PRECISION + logits


def fit_memory(
    facts: ModelFacts,
    recipe: QuantizationRecipe,
    engine: Engine,
    limits: EngineLimits,
    parallelism: Parallelism,
) -> MemoryFit:
    """Whether a recipe's weights and the wanted KV cache fit on each rank, and the largest batch that does."""
    weights = rank_weight_bytes(facts, recipe, parallelism, engine.unquantized_bytes)
    runtime = engine.runtime + activation_bytes(facts, limits, parallelism)
    element = kv_element_bytes(recipe, engine.kv_bytes) if engine.quantizes_kv else engine.kv_bytes
    per_token = rank_kv_bytes_per_token(facts, parallelism, element)
    tokens = limits.maximum_tokens_per_request
    request = rank_kv_bytes_per_request(facts, parallelism, element, tokens)
    fraction = engine.kv_cache.free_memory_fraction
    if engine.shares_whole_memory:
        available = max(0, int(engine.capacity * fraction) - weights - runtime)
    else:
        available = int(max(0, engine.capacity - weights - runtime) * fraction)
    return MemoryFit(
        capacity=engine.capacity,
        weights=weights,
        runtime=runtime,
        kv_per_token=per_token,
        kv_per_request=request,
        kv_available=available,
        kv_wanted=limits.maximum_sequences * request,
        largest_batch=available // request if request else limits.maximum_sequences,
    )


def _by_layer(facts: ModelFacts, kept: Callable[[CacheGroup], int]) -> list[int]:
    """A number of every layer's cache."""
    numbers = [0] * facts.layers
    for group in facts.caches:
        for layer in group.layers:
            numbers[layer] = kept(group)
    return numbers


def _fullest_sum(numbers: Sequence[float], stages: int) -> float:
    """The largest sum over the layers of one stage of a pipeline."""
    layers = ceil(len(numbers) / stages)
    return max(sum(numbers[first : first + layers]) for first in range(0, len(numbers), layers))


@cache
def _fullest_share(facts: ModelFacts, stages: int) -> float:
    """Share of the layers' weights that the fullest stage of a pipeline holds."""
    numbers = [0] * facts.layers
    for group in facts.matrices:
        for layer in group.layers:
            numbers[layer] += group.parameters
    return _fullest_sum(numbers, stages) / (sum(numbers) or 1)


def _layer_bytes(facts: ModelFacts, recipe: QuantizationRecipe, unquantized_bytes: int) -> int:
    return _linear_bytes(facts, recipe, layer_parameters(facts, recipe.exclude), unquantized_bytes)


def _head_bytes(facts: ModelFacts, recipe: QuantizationRecipe, unquantized_bytes: int) -> int:
    return _linear_bytes(facts, recipe, head_parameters(facts, recipe), unquantized_bytes)


def _linear_bytes(
    facts: ModelFacts, recipe: QuantizationRecipe, parameters: tuple[int, int], unquantized_bytes: int
) -> int:
    may_be_quantized, kept = parameters
    shares = mixture(facts, recipe)
    plain = int(may_be_quantized * sum(share.fraction for share in shares if share.weights == "none"))
    quantized = [share for share in shares if share.weights != "none"]
    return (kept + plain) * unquantized_bytes + stored_bytes(may_be_quantized, quantized)
