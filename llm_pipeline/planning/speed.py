"""What no engine can beat on a GPU, by a roofline model, and what one may be expected to reach. Pure.

A decoding step reads the weights of the layers and of the head once, and the KV cache of every request, at the memory's
full bandwidth; and it multiplies at the full dense peak of the format. Reading and multiplying may overlap, so the
longer of the two counts. Ranks share everything evenly and never wait. A token passes the stages of a pipeline one
after the other, so more stages read a request's weights no faster; caches and multiplications are spread over all
ranks. Left out, which only makes the bounds safer: attention's multiplications, activations, norms, embeddings,
communication, sampling and every overhead. A faster measurement is wrong.
Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

from typing import NamedTuple

from llm_pipeline.catalog.tables import Gpu, find_gpu
from llm_pipeline.config.quantization import WEIGHT_FORMATS, QuantizationRecipe, WeightFormat
from llm_pipeline.config.target import Parallelism, Target
from llm_pipeline.config.workload import Workload
from llm_pipeline.loadtest.physics import PhysicalLimits
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.memory import HALF_PRECISION, kv_element_bytes, stored_as_it_is, weight_bytes

REACHED = 0.5
"""Share of the bound that is expected of a full batch, served or scored; a step's measured time replaces what follows.
Llama-3-8B shapes passed over 34,000 tokens a second on one H200, which is 0.55 of it."""


class Tokens(NamedTuple):
    """Tokens of one request."""

    prompt: int
    output: int


_DRAFT_LENGTHS = ("max_draft_len", "num_nextn_predict_layers", "num_speculative_tokens")
_MOST_DRAFTED = 16
"""Draft tokens of a step where the target does not say."""

_FP8_BY_BF16 = 2.0
"""Peak of 8-bit tensor cores by that of the 16-bit ones, on every NVIDIA GPU that has them."""


class RooflineEngine(NamedTuple):
    """What decides the bounds.

    Attributes:
        tokens_per_step: Most tokens that one step gives a request: 1, or more under speculative decoding.
    """

    facts: ModelFacts
    recipe: QuantizationRecipe
    gpu: Gpu
    parallelism: Parallelism = Parallelism()
    tokens_per_step: int = 1


def engine_of(facts: ModelFacts, target: Target, recipe: QuantizationRecipe) -> RooflineEngine:
    """The engine of a GPU target.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    speculation, drafted = target.runtime.engine_args.get("speculative_config"), 0
    if isinstance(speculation, dict):
        lengths = [speculation.get(key) for key in _DRAFT_LENGTHS]
        drafted = max((length for length in lengths if isinstance(length, int)), default=_MOST_DRAFTED)
    return RooflineEngine(facts, recipe, find_gpu(target.accelerator), target.parallelism, 1 + drafted)


def decode_step_seconds(engine: RooflineEngine, requests: int, context_tokens: float) -> float:
    """Least time of one step of so many requests, each with so many tokens before it on average."""
    cached = 0.0
    for cache in engine.facts.caches:
        attended = min(context_tokens, cache.window or context_tokens)
        cached += len(cache.layers) * attended * cache.heads * cache.elements
    cache_bytes = cached * kv_element_bytes(engine.recipe) + engine.facts.state_bytes  # states, whatever the context
    bandwidth, parallelism = engine.gpu.mem_bw_gb_s * 1e9, engine.parallelism
    reading = _weights_read(engine) / (parallelism.tensor * bandwidth)
    reading += requests * cache_bytes / (parallelism.world_size * bandwidth)
    return max(reading, requests * _multiplying_seconds(engine, head=True))


def prompt_seconds(engine: RooflineEngine, tokens: int) -> float:
    """Least time of the pass over a prompt of which nothing is cached; the head sees only its last token."""
    reading = _weights_read(engine) / (engine.parallelism.tensor * engine.gpu.mem_bw_gb_s * 1e9)
    return max(reading, tokens * _multiplying_seconds(engine, head=False))


def answering_seconds(engine: RooflineEngine, requests: int, tokens: Tokens) -> float:
    """Least time of so many requests of the same lengths, answered at a time, where others follow at once.

    Args:
        engine: What serves them.
        requests: Requests at a time.
        tokens: Their lengths; prompts that come from the KV cache count as none.
    """
    steps = tokens.output / engine.tokens_per_step
    reading = steps * decode_step_seconds(engine, requests, tokens.prompt + tokens.output / 2)
    prompts = requests * tokens.prompt * _multiplying_seconds(engine, head=False)
    multiplying = prompts + requests * tokens.output * _multiplying_seconds(engine, head=True)
    return max(reading, multiplying)


def most_tokens_per_second(engine: RooflineEngine, requests: int, tokens: Tokens) -> float:
    """Most output tokens a second of so many requests, as in `answering_seconds`."""
    return requests * tokens.output / answering_seconds(engine, requests, tokens)


def _weights_read(engine: RooflineEngine) -> int:
    """Of a mixture, the experts of one token: however many tokens there are, all may choose the same."""
    facts = stored_as_it_is(engine.facts, engine.recipe) or engine.facts
    unread = facts.other_parameters + (0 if facts.tied_embeddings else facts.embedding_parameters)
    read = max(0, weight_bytes(engine.facts, engine.recipe) - HALF_PRECISION * unread)
    return int(read * (facts.active_parameters - unread) / (facts.parameters - unread))


def _multiplying_seconds(engine: RooflineEngine, *, head: bool) -> float:
    """One token through all layers, and the head if it is wanted, on the fastest cores, with all ranks at work."""
    facts, recipe, gpu = engine.facts, engine.recipe, engine.gpu
    multiplied = facts.active_parameters - facts.embedding_parameters - facts.head_parameters - facts.other_parameters
    if head:
        multiplied += facts.head_parameters or facts.embedding_parameters
    formats = WEIGHT_FORMATS if stored_as_it_is(facts, recipe) else recipe.formats  # which cores engines use is theirs
    fastest = max(_peak(gpu, weights) for weights in ("none", *formats))
    return 2 * multiplied / fastest / engine.parallelism.world_size


def _peak(gpu: Gpu, weights: WeightFormat) -> float:
    """Operations a second of the tensor cores that multiply a format; without such cores, of the 16-bit ones."""
    unit = WEIGHT_FORMATS[weights].cores if weights in WEIGHT_FORMATS else "bf16"
    plain = gpu.dense_tflops["bf16"] or 0.0
    if unit == "int8":
        return (gpu.int8_tops_dense or gpu.dense_tflops.get("fp8") or _FP8_BY_BF16 * plain) * 1e12
    return (gpu.dense_tflops.get(unit) or plain) * 1e12


_LONG_PROMPT = 1_000_000
"""So long that its pass multiplies for longer than it reads weights."""


def physical_limits(
    facts: ModelFacts | None, target: Target, recipe: QuantizationRecipe, workload: Workload
) -> PhysicalLimits | None:
    """The bounds of one recipe on one target; None on a CPU, and for a model whose sizes are not known.

    Tokens of a prompt cost nothing where a cache may hold them: with shared prefixes, and in a trace that has them.

    Args:
        facts: The model.
        target: What it is served on; each instance of the engine has as many GPUs.
        recipe: The format of its weights and its cache.
        workload: Whose prompts may be cached.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    if facts is None or target.accelerator == "cpu":
        return None
    engine = engine_of(facts, target, recipe)
    shared = workload.shared_prefixes is not None
    together = most_tokens_per_second(engine, target.limits.maximum_sequences, Tokens(prompt=0, output=1))
    return PhysicalLimits(
        accelerator=f"{target.parallelism.world_size} x {target.accelerator}",
        first_token_seconds=prompt_seconds(engine, 1),
        token_seconds=decode_step_seconds(engine, 1, 0) / engine.tokens_per_step,
        prompt_token_seconds=0.0 if shared else prompt_seconds(engine, _LONG_PROMPT) / _LONG_PROMPT,
        tokens_per_second=together,
    )
