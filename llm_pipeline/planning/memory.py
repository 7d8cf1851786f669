"""What weights and KV cache take, and whether they fit on each rank. Pure arithmetic; every figure is in bytes.

Weights: the linear modules inside the layers take the recipe's format; embeddings, norms, biases, the head where the
recipe excludes it, and every module that an exclude pattern names stay at the baseline's precision, as modelopt
exports them. A checkpoint that is quantized already, the model's own or a recipe's `source`, stays as it is. What
layers keep of a sequence is in `model_facts/layout.py`. A layer with a sliding window holds no more tokens than the
window has only where the target tells its engine so (`attention_windows`): engines keep all of them otherwise.

A search is asked for mean bits of a weight, counted by modelopt over all linear modules, the head and the excluded
ones at 16 bits among them. Which layer gets which format is known only once the search has run; planning takes the mean
that is left for the layers that may be quantized.

Experts are shared evenly by all ranks of a stage, whichever parallelism spreads them. Not counted: a draft model of
speculative decoding, and what attention data parallelism copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import ceil, inf

from llm_pipeline.base.records import Frozen
from llm_pipeline.catalog.output_head import is_named, keeps_head
from llm_pipeline.config.quantization import BLOCKWISE, WEIGHT_FORMATS, KvCacheFormat, QuantizationRecipe, WeightFormat
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.config.target import TOKENS_PER_BLOCK, EngineLimits, KvCacheOptions, Parallelism
from llm_pipeline.model_facts.facts import CacheGroup, ModelFacts
from llm_pipeline.model_facts.reader import stated_facts

HALF_PRECISION = 2
"""Bytes of one float16 or bfloat16 element."""

PLAIN = QuantizationRecipe(name="none", weights="none")
"""The model as it is."""

_UNQUANTIZED_BITS = 8.0 * HALF_PRECISION


def format_bits(weights: WeightFormat) -> float:
    """Bits of a stored weight without its scales; those of an unquantized one where the format does not say."""
    return float(WEIGHT_FORMATS[weights].bits) if weights in WEIGHT_FORMATS else _UNQUANTIZED_BITS


def bits_per_weight(recipe: QuantizationRecipe) -> float:
    """Mean bits of a stored weight, without its scales, as far as the recipe alone says."""
    return recipe.search.effective_bits[0] if recipe.search else format_bits(recipe.weights)


def _stored_bits(facts: ModelFacts, recipe: QuantizationRecipe) -> float:
    """Mean bits of a weight that the recipe quantizes, its scales included."""
    scales = max(32 / recipe.group_size if name in BLOCKWISE else 0.0 for name in recipe.formats)
    if recipe.search is None:
        return format_bits(recipe.weights) + max(scales, 8 / (WEIGHT_FORMATS[recipe.weights].byte_scaled or inf))
    quantized, kept = _searched_parameters(facts, recipe)  # what is left for those that may be, if all have the mean
    left = recipe.search.effective_bits[0] * (quantized + kept) - kept * _UNQUANTIZED_BITS
    return min(left / quantized + scales, _UNQUANTIZED_BITS) if quantized else _UNQUANTIZED_BITS


def least_effective_bits(facts: ModelFacts, recipe: QuantizationRecipe) -> float:
    """The fewest mean bits that a recipe's search can reach on a model."""
    quantized, kept = _searched_parameters(facts, recipe)
    least = min(format_bits(name) + 8 / (WEIGHT_FORMATS[name].byte_scaled or inf) for name in recipe.formats)
    return (quantized * least + kept * _UNQUANTIZED_BITS) / (quantized + kept)


def quantizes_experts(facts: ModelFacts, recipe: QuantizationRecipe) -> bool:
    """Whether a recipe of ours quantizes experts of a mixture."""
    if recipe.weights in ("none", "ready"):
        return False
    return any(".experts." in group.name and not is_named(name, recipe.exclude) for name, group in facts.linears())


@cache
def layer_parameters(facts: ModelFacts, exclude: tuple[str, ...]) -> tuple[int, int]:
    """Parameters of the linear modules inside the layers: those that may be quantized, and those that are kept."""
    counted = [(is_named(name, exclude), group.parameters) for name, group in facts.linears()]
    return sum(size for kept, size in counted if not kept), sum(size for kept, size in counted if kept)


def head_parameters(facts: ModelFacts, recipe: QuantizationRecipe) -> tuple[int, int]:
    """The same for the output head."""
    size = facts.head_parameters or facts.embedding_parameters  # a tied head multiplies by the embedding table
    return (0, size) if keeps_head(recipe, facts.head) else (size, 0)


def _searched_parameters(facts: ModelFacts, recipe: QuantizationRecipe) -> tuple[int, int]:
    layers, head = layer_parameters(facts, recipe.exclude), head_parameters(facts, recipe)
    return layers[0] + head[0], layers[1] + head[1]


KV_BYTES: dict[KvCacheFormat, float] = {"fp8": 1.0, "nvfp4": 0.5 + 1 / 16, "none": HALF_PRECISION}
"""Bytes of one element of the KV cache, the scale of a block of 16 included."""


class Engine(Frozen):
    """What decides an engine's memory besides the model and the recipe.

    Attributes:
        capacity: Memory of one rank, in bytes.
        runtime: What the runtime takes before any weight is loaded, in bytes.
        element_bytes: Of an unquantized weight once loaded, and of an unquantized KV cache.
        quantizes_kv: Whether the engine stores the KV cache in the format that the recipe asks for.
        kv_cache: How much of the memory the KV cache may take.
        shares_whole_memory: The fraction of `kv_cache` is of the capacity, for weights, runtime and cache together.
    """

    capacity: int
    runtime: int
    element_bytes: int = HALF_PRECISION
    quantizes_kv: bool = True
    kv_cache: KvCacheOptions = KvCacheOptions()
    shares_whole_memory: bool = False


class MemoryFit(Frozen):
    """The memory of one rank, in bytes.

    Attributes:
        capacity: What the device has.
        weights: Weights of the fullest rank.
        runtime: Context, graphs and activations, by a stated model.
        kv_available: What the KV cache may take.
        kv_wanted: KV cache of `limits.maximum_sequences` requests of full length.
        largest_batch: Requests of full length that fit at once.
    """

    capacity: int
    weights: int
    runtime: int
    kv_available: int
    kv_wanted: int
    largest_batch: int

    @property
    def fits(self) -> bool:
        """Whether what the target's limits ask for can be held at once."""
        return self.kv_wanted <= self.kv_available


def stored_as_it_is(facts: ModelFacts, recipe: QuantizationRecipe) -> ModelFacts | None:
    """The quantized checkpoint that a recipe passes on unchanged; None where it does not, or that was not read."""
    found = facts.ready.get(recipe.name) if recipe.weights == "ready" else facts if recipe.weights == "none" else None
    return found if found is not None and found.stored_format else None


def weight_bytes(facts: ModelFacts, recipe: QuantizationRecipe) -> int:
    """Bytes of a checkpoint's weights under a recipe."""
    if stored := stored_as_it_is(facts, recipe):
        return stored.stored_bytes
    layers, head = _linear_bytes(facts, recipe, HALF_PRECISION)
    edges = (facts.embedding_parameters + facts.other_parameters) * HALF_PRECISION
    return layers + edges + (0 if facts.tied_embeddings else head)


def kv_element_bytes(recipe: QuantizationRecipe) -> float:
    """Bytes of one element of the KV cache that a recipe asks for."""
    return KV_BYTES[recipe.kv_cache]


def rank_weight_bytes(
    facts: ModelFacts, recipe: QuantizationRecipe, parallelism: Parallelism, unquantized_bytes: int = HALF_PRECISION
) -> int:
    """Bytes of the weights that the fullest rank holds: the embeddings' or the head's stage of the pipeline."""
    stages = parallelism.pipeline
    in_layers, head = _linear_bytes(facts, recipe, unquantized_bytes)
    layers = in_layers * _fullest_share(facts, stages)
    embeddings = facts.embedding_parameters * unquantized_bytes
    both = embeddings + (0 if facts.tied_embeddings else head)
    edges = max(embeddings, head) if stages > 1 else both
    copied = facts.other_parameters * unquantized_bytes
    if (stored := stored_as_it_is(facts, recipe)) and unquantized_bytes == HALF_PRECISION:
        layers = max(0, stored.stored_bytes - both - copied) * _fullest_share(facts, stages)
    return ceil((layers + edges) / parallelism.tensor) + copied


def rank_kv_bytes_per_request(facts: ModelFacts, parallelism: Parallelism, element_bytes: float, tokens: int) -> int:
    """What one request keeps on the fullest rank: whole blocks of tokens in each layer, and states of fixed size.

    Heads are copied where there are more ranks than heads.
    """
    elements = _by_layer(facts, lambda cache: ceil(cache.heads / parallelism.tensor) * cache.elements)
    states = _by_layer(facts, lambda cache: ceil(cache.state_bytes / parallelism.tensor))
    whole = ceil(tokens / TOKENS_PER_BLOCK) * TOKENS_PER_BLOCK
    held = [elements[layer] * element_bytes * whole + states[layer] for layer in range(facts.layers)]
    return ceil(_fullest_sum(held, parallelism.pipeline))


def fit_memory(
    facts: ModelFacts, recipe: QuantizationRecipe, engine: Engine, limits: EngineLimits, parallelism: Parallelism
) -> MemoryFit:
    """Whether a recipe's weights and the wanted KV cache fit on each rank, and the largest batch that does.

    The peak of the activations follows a simple model: one MLP of a full step at 16 bit, and the logits at 32 bit.
    """
    weights = rank_weight_bytes(facts, recipe, parallelism, engine.element_bytes)
    width = 2 * facts.hidden_size + 3 * facts.intermediate_size // parallelism.tensor
    logits = limits.maximum_sequences * facts.vocabulary_size * 4
    runtime = engine.runtime + limits.maximum_batched_tokens * width * HALF_PRECISION + logits
    element = kv_element_bytes(recipe) if engine.quantizes_kv else engine.element_bytes
    request = rank_kv_bytes_per_request(facts, parallelism, element, limits.maximum_tokens_per_request)
    fraction = engine.kv_cache.free_memory_fraction
    if engine.shares_whole_memory:
        available = max(0, int(engine.capacity * fraction) - weights - runtime)
    else:
        available = int(max(0, engine.capacity - weights - runtime) * fraction)
    return MemoryFit(
        capacity=engine.capacity,
        weights=weights,
        runtime=runtime,
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


def _linear_bytes(facts: ModelFacts, recipe: QuantizationRecipe, unquantized_bytes: int) -> tuple[int, int]:
    """Bytes of the linear modules inside the layers, and of the output head."""
    bits = 8.0 * unquantized_bytes if recipe.weights in ("none", "ready") else _stored_bits(facts, recipe)
    sizes = [
        kept * unquantized_bytes + ceil(variable * bits / 8)
        for variable, kept in (layer_parameters(facts, recipe.exclude), head_parameters(facts, recipe))
    ]
    return sizes[0], sizes[1]


def climbing_order(release: ResolvedRelease, facts: ModelFacts | None = None) -> tuple[str, ...]:
    """The ladder: names of all recipes in the order in which they are tried, the smallest checkpoint first.

    Equally small ones stay as the config has them. Without facts, by the sizes that the release config states, if it
    does, or else by the bits of a weight: a DAG is drawn before anything is read.
    """
    known = facts or stated_facts(release.model.sizes)
    sizes = {
        recipe.name: weight_bytes(known, recipe) if known else bits_per_weight(recipe) for recipe in release.recipes
    }
    return tuple(sorted(sizes, key=lambda name: sizes[name]))
