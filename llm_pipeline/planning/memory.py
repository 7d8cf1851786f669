"""Sizes of weights and KV caches, and whether they fit. Pure arithmetic; every figure is in bytes.

Weights: the linear modules inside the layers take the recipe's format; embeddings, norms, biases, the head where the
recipe excludes it, and every module that an exclude pattern names stay at the baseline's precision, as modelopt
exports them. KV cache of one token: 2 (key, value) x layers x KV heads x head size x bytes an element; a layer with a
sliding window holds no more tokens than the window has.

All known shapes are of dense models, so that expert parallelism spreads nothing. Not counted: a draft model of
speculative decoding, and what attention data parallelism copies.
"""

from __future__ import annotations

from math import ceil

from llm_pipeline.config.quantization import KvCacheFormat, QuantizationRecipe
from llm_pipeline.config.runtime_options import KvCacheOptions
from llm_pipeline.config.target import EngineLimits, Parallelism
from llm_pipeline.planning.model_shape import ModelShape
from llm_pipeline.planning.weight_storage import (
    HALF_PRECISION,
    head_parameters,
    layer_parameters,
    mixture,
    stored_bytes,
)
from llm_pipeline.stages.contract import Frozen

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
        kv_cache: How much of the memory the KV cache may take, and what it holds of a request.
        beam_width: Beams of a request; each is counted with a KV cache of its own, the most that they can need.
    """

    capacity: int
    runtime: int
    unquantized_bytes: int = HALF_PRECISION
    kv_bytes: int = HALF_PRECISION
    quantizes_kv: bool = True
    kv_cache: KvCacheOptions = KvCacheOptions()
    beam_width: int = 1


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


def weight_bytes(shape: ModelShape, recipe: QuantizationRecipe, unquantized_bytes: int = HALF_PRECISION) -> int:
    """Bytes of a checkpoint's weights under a recipe."""
    heads = 0 if shape.tied_embeddings else _head_bytes(shape, recipe, unquantized_bytes)
    edges = (shape.embedding_parameters + shape.vector_parameters) * unquantized_bytes
    return _layer_bytes(shape, recipe, unquantized_bytes) + edges + heads


def kv_bytes_per_token(shape: ModelShape, element_bytes: float = HALF_PRECISION) -> int:
    """KV cache of one token over all layers and heads, in bytes."""
    return ceil(2 * shape.layers * shape.key_value_heads * shape.head_size * element_bytes)


def kv_element_bytes(recipe: QuantizationRecipe, unquantized_bytes: int = HALF_PRECISION) -> float:
    """Bytes of one element of the KV cache that a recipe asks for."""
    return _KV_BYTES.get(recipe.kv_cache, unquantized_bytes)


def rank_weight_bytes(
    shape: ModelShape, recipe: QuantizationRecipe, parallelism: Parallelism, unquantized_bytes: int = HALF_PRECISION
) -> int:
    """Bytes of the weights that the fullest rank holds: the embeddings' or the head's stage of the pipeline."""
    stages = parallelism.pipeline
    layers = _layer_bytes(shape, recipe, unquantized_bytes) * ceil(shape.layers / stages) / shape.layers
    embeddings = shape.embedding_parameters * unquantized_bytes
    head = _head_bytes(shape, recipe, unquantized_bytes)
    edges = max(embeddings, head) if stages > 1 else embeddings + (0 if shape.tied_embeddings else head)
    return ceil((layers + edges) / parallelism.tensor) + shape.vector_parameters * unquantized_bytes


def rank_kv_bytes_per_token(shape: ModelShape, parallelism: Parallelism, element_bytes: float) -> int:
    """KV cache of one token on the fullest rank; heads are copied where there are more ranks than heads."""
    layers = ceil(shape.layers / parallelism.pipeline)
    return ceil(2 * layers * ceil(shape.key_value_heads / parallelism.tensor) * shape.head_size * element_bytes)


def rank_kv_bytes_per_request(
    shape: ModelShape, parallelism: Parallelism, element_bytes: float, options: KvCacheOptions, tokens: int
) -> int:
    """KV cache of one request on the fullest rank, in whole blocks of each layer that the rank holds."""
    per_layer = 2 * ceil(shape.key_value_heads / parallelism.tensor) * shape.head_size * element_bytes
    held = [_tokens_held(tokens, layer, options) for layer in range(shape.layers)]
    layers = ceil(shape.layers / parallelism.pipeline)
    return ceil(per_layer * max(sum(held[first : first + layers]) for first in range(0, shape.layers, layers)))


def activation_bytes(shape: ModelShape, limits: EngineLimits, parallelism: Parallelism) -> int:
    """Peak of the activations, by a simple model: one MLP of a full step at 16 bit, and the logits at 32 bit."""
    width = 2 * shape.hidden_size + 3 * shape.intermediate_size // parallelism.tensor
    logits = limits.maximum_sequences * shape.vocabulary_size * 4
    return limits.maximum_batched_tokens * width * HALF_PRECISION + logits


def fit_memory(
    shape: ModelShape,
    recipe: QuantizationRecipe,
    engine: Engine,
    limits: EngineLimits,
    parallelism: Parallelism,
) -> MemoryFit:
    """Whether a recipe's weights and the wanted KV cache fit on each rank, and the largest batch that does."""
    weights = rank_weight_bytes(shape, recipe, parallelism, engine.unquantized_bytes)
    runtime = engine.runtime + activation_bytes(shape, limits, parallelism)
    element = kv_element_bytes(recipe, engine.kv_bytes) if engine.quantizes_kv else engine.kv_bytes
    per_token = rank_kv_bytes_per_token(shape, parallelism, element)
    tokens = limits.maximum_tokens_per_request
    request = engine.beam_width * rank_kv_bytes_per_request(shape, parallelism, element, engine.kv_cache, tokens)
    available = int(max(0, engine.capacity - weights - runtime) * engine.kv_cache.free_memory_fraction)
    if engine.kv_cache.maximum_tokens:
        available = min(available, engine.kv_cache.maximum_tokens * per_token)
    return MemoryFit(
        capacity=engine.capacity,
        weights=weights,
        runtime=runtime,
        kv_per_token=per_token,
        kv_per_request=request,
        kv_available=available,
        kv_wanted=limits.maximum_sequences * request,
        largest_batch=available // request,
    )


def _tokens_held(tokens: int, layer: int, options: KvCacheOptions) -> int:
    """Tokens that a layer keeps of a request of so many: its window's and the first ones, in whole blocks."""
    if options.attention_windows:
        window = options.attention_windows[layer % len(options.attention_windows)]
        tokens = min(tokens, window + (options.sink_tokens or 0))
    return ceil(tokens / options.tokens_per_block) * options.tokens_per_block


def _layer_bytes(shape: ModelShape, recipe: QuantizationRecipe, unquantized_bytes: int) -> int:
    return _linear_bytes(shape, recipe, layer_parameters(shape, recipe.exclude), unquantized_bytes)


def _head_bytes(shape: ModelShape, recipe: QuantizationRecipe, unquantized_bytes: int) -> int:
    return _linear_bytes(shape, recipe, head_parameters(shape, recipe), unquantized_bytes)


def _linear_bytes(
    shape: ModelShape, recipe: QuantizationRecipe, parameters: tuple[int, int], unquantized_bytes: int
) -> int:
    may_be_quantized, kept = parameters
    shares = mixture(shape, recipe)
    plain = int(may_be_quantized * sum(share.fraction for share in shares if share.weights == "none"))
    quantized = [share for share in shares if share.weights != "none"]
    return (kept + plain) * unquantized_bytes + stored_bytes(may_be_quantized, quantized)
