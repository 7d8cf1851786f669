"""How fast a recipe is decoded on a GPU, by roofline models: predicted, and what no engine can beat. Pure.

    relative_speed(facts, target, recipe, requests=64)  # 0.87: slower than the unquantized model

**Predicted.** A pass over `rows` tokens takes, for each matrix, the longer of reading it at `_BANDWIDTH` of the
memory's peak and of multiplying at `_EFFICIENCY` of the format's peak. Weights that no tensor core takes as they are
stored are unpacked before: at one pace in the kernels for few rows, at a slower one, again for each `_TILE` rows, in
those for many. A decoding step reads the KV cache, too, and takes `_LAYER_SECONDS` a layer for what does not grow with
anything.
A request is one pass over its prompt and one step for each token that it puts out.

The constants were fitted to twelve figures that NVIDIA published: Llama-3.1-8B on one H200, 2048 tokens in and 128
out, TensorRT-LLM 0.15, batches of 1, 8 and 64 (`examples/benchmark.md` of NVIDIA/Model-Optimizer, a2fbac7b). They are
met within 8 %, their ratios to BF16 within 0.12. Of 70B, which they were not fitted to, formats stand to each other as
published within a factor of 1.5, and all are underestimated, by up to 40 % at batch 64. What the model does not know:
other GPUs (scaled by their peaks), other kernels than those of that version, communication between GPUs, and how well
FP4 and INT8 tensor cores are used (taken as FP8's). Use it to rank recipes, not to promise a speed.

**Bounds.** A decoding step reads the weights of the layers and of the head once, and the KV cache of every request, at
the memory's full bandwidth; and it multiplies at the full dense peak of the format. Reading and multiplying may
overlap, so the longer of the two counts. Ranks share everything evenly and never wait. A token passes the stages of a
pipeline one after the other, so more stages read a request's weights no faster; caches and multiplications are spread
over all ranks. Left out, which only makes the bounds safer: attention's multiplications, activations, norms,
embeddings, communication, sampling and every overhead. A faster measurement is wrong.
Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Literal, NamedTuple

from llm_pipeline.base.records import Frozen
from llm_pipeline.catalog.tables import Gpu, find_gpu
from llm_pipeline.config.quantization import QuantizationRecipe, WeightFormat
from llm_pipeline.config.target import Parallelism, Target
from llm_pipeline.config.workload import Workload
from llm_pipeline.loadtest.physics import PhysicalLimits
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.memory import (
    HALF_PRECISION,
    Share,
    head_parameters,
    kv_bytes_per_token,
    kv_element_bytes,
    layer_parameters,
    mixture,
    stored_as_it_is,
    stored_bytes,
    touched_parameters,
)

_BANDWIDTH = 0.9
_EFFICIENCY = {16: 0.5, 8: 0.34}
_LAYER_SECONDS = 60e-6
_FITTED_TFLOPS = 989.0
_FEW_ROWS = 4
_UNPACKED_FEW = 9e12
_UNPACKED_MANY = 1.4e12
_UNPACKED_TO_FP8 = 1.5
_TILE = 1500
"""Weights unpacked a second by a GPU of `_FITTED_TFLOPS` at 16 bit; to FP8 it is faster by a factor."""

Unit = Literal["bf16", "fp8", "int8", "fp4"]

UNITS: Mapping[WeightFormat, Unit] = {
    "fp8": "fp8",
    "fp8_per_channel_token": "fp8",
    "fp8_block": "fp8",
    "w4a8_awq": "fp8",
    "int8_smoothquant": "int8",
    "nvfp4": "fp4",
    "nvfp4_awq": "fp4",
    "mxfp4": "fp4",
}
"""Tensor cores that multiply; the 16-bit ones for every other format."""

_UNPACKED: frozenset[WeightFormat] = frozenset({"int8_weight_only", "int4_blockwise", "int4_awq", "w4a8_awq"})


class Tokens(NamedTuple):
    """Tokens of one request; as given, those of the figures that the model is fitted to."""

    prompt: int = 2048
    output: int = 128


PUBLISHED = Tokens()

_TOGETHER = 64
"""Requests that are decoded together: 4-bit weights win at one request and may lose at many."""


def relative_speed(facts: ModelFacts, target: Target, recipe: QuantizationRecipe, requests: int) -> float | None:
    """Output tokens a second under a recipe, by those of the unquantized model; None on a CPU.

    Args:
        facts: The model.
        target: Where it is served.
        recipe: How it is quantized.
        requests: Requests decoded together, as long as `PUBLISHED`.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    quantized = tokens_per_second(facts, target, recipe, requests)
    plain = tokens_per_second(facts, target, QuantizationRecipe(name="none", weights="none"), requests)
    return quantized / plain if quantized and plain else None


def tokens_per_second(
    facts: ModelFacts, target: Target, recipe: QuantizationRecipe, requests: int, tokens: Tokens = PUBLISHED
) -> float | None:
    """Output tokens a second of all requests together; None on a CPU.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    if target.accelerator == "cpu":
        return None
    model = _Model(facts, recipe, find_gpu(target.accelerator), target.parallelism.world_size)
    seconds = model.prompt_seconds(requests, tokens.prompt) + tokens.output * model.step_seconds(requests, tokens)
    return requests * tokens.output / seconds


class _Model(NamedTuple):
    """Times of one engine, in seconds; the ranks share all work evenly and never wait for each other."""

    facts: ModelFacts
    recipe: QuantizationRecipe
    gpu: Gpu
    ranks: int

    def prompt_seconds(self, requests: int, tokens: int) -> float:
        """One pass over all prompts; attention looks back at half of each on average."""
        attention = 2 * self.facts.layers * self.facts.attention_heads * self.facts.head_size * requests * tokens**2
        return self._layers(requests * tokens) + attention / self._peak("bf16") / self.ranks + self._fixed()

    def step_seconds(self, requests: int, tokens: Tokens) -> float:
        """One more token of every request, at half of its output."""
        held = requests * (tokens.prompt + tokens.output / 2)
        cache = held * kv_bytes_per_token(self.facts, kv_element_bytes(self.recipe)) / self._bandwidth() / self.ranks
        head = self._matrices(head_parameters(self.facts, self.recipe), requests)
        return self._layers(requests) + head + cache + self._fixed()

    def _layers(self, rows: int) -> float:
        """Of a mixture, all experts that the rows choose are read, and each row is multiplied with its own."""
        touched = touched_parameters(self.facts, self.recipe.exclude, rows)
        active = layer_parameters(self.facts, self.recipe.exclude, active=True)
        return self._matrices(touched, rows, active)

    def _matrices(self, read: tuple[int, int], rows: int, multiplied: tuple[int, int] | None = None) -> float:
        (quantized, kept), (active, active_kept) = read, multiplied or read
        mixed = (
            self._format(ceil(quantized * share.fraction), ceil(active * share.fraction), share.weights, rows)
            for share in mixture(self.facts, self.recipe)
        )
        return sum(mixed) + self._format(kept, active_kept, "none", rows)

    def _format(self, read: int, multiplied: int, weights: WeightFormat, rows: int) -> float:
        size = stored_bytes(read, (Share(weights, 1.0),))
        multiplying = 2 * multiplied * rows / self._peak(UNITS.get(weights, "bf16"))
        return (max(size / self._bandwidth(), multiplying) + self._unpacking(read, weights, rows)) / self.ranks

    def _unpacking(self, parameters: int, weights: WeightFormat, rows: int) -> float:
        if weights not in _UNPACKED:
            return 0.0
        pace = _UNPACKED_FEW if rows <= _FEW_ROWS else _UNPACKED_MANY / max(1.0, rows / _TILE)
        faster = _UNPACKED_TO_FP8 if weights == "w4a8_awq" else 1.0
        return parameters / (pace * faster * (self.gpu.dense_tflops["bf16"] or 0.0) / _FITTED_TFLOPS)

    def _peak(self, unit: Unit) -> float:
        """Operations a second that are reached; GPUs without a unit compute at 16 bit."""
        peak = self.gpu.int8_tops_dense if unit == "int8" else self.gpu.dense_tflops.get(unit)
        if peak is None or unit == "bf16":
            return (self.gpu.dense_tflops["bf16"] or 0.0) * 1e12 * _EFFICIENCY[16]
        return peak * 1e12 * _EFFICIENCY[8]

    def _bandwidth(self) -> float:
        return self.gpu.mem_bw_gb_s * 1e9 * _BANDWIDTH

    def _fixed(self) -> float:
        return self.facts.layers * _LAYER_SECONDS


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
    speculation, drafted = target.runtime.extra_llm_args.get("speculative_config"), 0
    if isinstance(speculation, dict):
        lengths = (speculation.get(key) for key in ("max_draft_len", "num_nextn_predict_layers"))
        drafted = max((length for length in lengths if isinstance(length, int)), default=_MOST_DRAFTED)
    return RooflineEngine(facts, recipe, find_gpu(target.accelerator), target.parallelism, 1 + drafted)


def decode_step_seconds(engine: RooflineEngine, requests: int, context_tokens: float) -> float:
    """Least time of one step of so many requests, each with so many tokens before it on average."""
    bandwidth = engine.gpu.mem_bw_gb_s * 1e9
    ranks, tensor = engine.parallelism.world_size, engine.parallelism.tensor
    cache = _cache_read(engine, context_tokens) * requests
    reading = _weights_read(engine) / (tensor * bandwidth) + cache / (ranks * bandwidth)
    return max(reading, requests * _multiplying_seconds(engine, head=True))


def prompt_seconds(engine: RooflineEngine, tokens: int) -> float:
    """Least time of the pass over a prompt of which nothing is cached; the head sees only its last token."""
    reading = _weights_read(engine) / (engine.parallelism.tensor * engine.gpu.mem_bw_gb_s * 1e9)
    return max(reading, tokens * _multiplying_seconds(engine, head=False))


def most_tokens_per_second(engine: RooflineEngine, requests: int, tokens: Tokens) -> float:
    """Most output tokens a second of so many requests of the same lengths, always as many at a time.

    Args:
        engine: What serves them.
        requests: Requests at a time.
        tokens: Their lengths; prompts that come from the KV cache count as none.
    """
    steps = tokens.output / engine.tokens_per_step
    reading = steps * decode_step_seconds(engine, requests, tokens.prompt + tokens.output / 2)
    prompts = requests * tokens.prompt * _multiplying_seconds(engine, head=False)
    multiplying = prompts + requests * tokens.output * _multiplying_seconds(engine, head=True)
    return requests * tokens.output / max(reading, multiplying)


def _cache_read(engine: RooflineEngine, context_tokens: float) -> float:
    """Bytes of a request's cache that one step reads at least; of states, whatever the context."""
    elements = 0.0
    for cache in engine.facts.caches:
        attended = min(context_tokens, cache.window or context_tokens)
        elements += len(cache.layers) * attended * cache.heads * cache.elements
    return elements * kv_element_bytes(engine.recipe) + engine.facts.state_bytes


def _weights_read(engine: RooflineEngine) -> int:
    """Of a mixture, the experts of one token: however many tokens there are, all may choose the same."""
    if stored := stored_as_it_is(engine.facts, engine.recipe):
        shares = stored.active_parameters / stored.parameters
        return int(_stored_layers_and_head(stored) * shares)
    layers = layer_parameters(engine.facts, engine.recipe.exclude, active=True)
    return _stored(engine, layers) + _stored(engine, head_parameters(engine.facts, engine.recipe))


def _stored_layers_and_head(facts: ModelFacts) -> int:
    """Bytes of a checkpoint that is quantized already, without what no step reads."""
    embedding = 0 if facts.tied_embeddings else facts.embedding_parameters
    return max(0, facts.stored_bytes - HALF_PRECISION * (embedding + facts.other_parameters))


def _stored(engine: RooflineEngine, parameters: tuple[int, int]) -> int:
    quantized, kept = parameters
    return stored_bytes(quantized, mixture(engine.facts, engine.recipe)) + stored_bytes(kept, (Share("none", 1.0),))


def _multiplying_seconds(engine: RooflineEngine, *, head: bool) -> float:
    """One token through all layers, and the head if it is wanted, with all ranks at work."""
    if stored_as_it_is(engine.facts, engine.recipe):
        return _multiplying_stored(engine, head=head)
    matrices = [layer_parameters(engine.facts, engine.recipe.exclude, active=True)]
    if head:
        matrices.append(head_parameters(engine.facts, engine.recipe))
    shares = mixture(engine.facts, engine.recipe)
    seconds = 0.0
    for quantized, kept in matrices:
        seconds += 2 * kept / _peak(engine.gpu, "none")
        seconds += sum(2 * ceil(quantized * share.fraction) / _peak(engine.gpu, share.weights) for share in shares)
    return seconds / engine.parallelism.world_size


def _multiplying_stored(engine: RooflineEngine, *, head: bool) -> float:
    """The same of a checkpoint that is quantized already, at the GPU's fastest: which cores engines use is theirs."""
    facts, gpu = engine.facts, engine.gpu
    outside = facts.embedding_parameters + facts.head_parameters + facts.other_parameters
    multiplied = facts.active_parameters - outside
    if head:
        multiplied += facts.head_parameters or facts.embedding_parameters
    fastest = max(_peak(gpu, weights) for weights in ("none", "fp8", "int8_smoothquant", "nvfp4"))
    return 2 * multiplied / fastest / engine.parallelism.world_size


def _peak(gpu: Gpu, weights: WeightFormat) -> float:
    """Operations a second of the tensor cores that multiply a format; without such cores, of the 16-bit ones."""
    unit: Unit = UNITS.get(weights, "bf16")
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


class SpeedFigures(Frozen):
    """How fast a recipe is predicted to be on a target.

    Attributes:
        alone: Output tokens a second by those of the unquantized model there, with one request at a time.
        together: The same with `requests` at a time.
        requests: 64, or as many as the target holds if that is fewer.
        tokens_alone: Output tokens a second with one request at a time, prompts included.
        tokens_together: The same of all that the target holds together.
        prompt_tokens: Of a request: those that the prediction was fitted to, or fewer where the target takes none so
            long.
        output_tokens: Likewise.
    """

    alone: float
    together: float
    requests: int
    tokens_alone: float
    tokens_together: float
    prompt_tokens: int
    output_tokens: int


def predict_speed(target: Target, recipe: QuantizationRecipe, facts: ModelFacts) -> SpeedFigures | None:
    """Predict a recipe's speed; None on a CPU, and for a checkpoint that somebody else quantized.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    if recipe.weights == "ready":
        return None
    most, longest = target.limits.maximum_sequences, target.limits.maximum_tokens_per_request
    requests, output = min(_TOGETHER, most), min(PUBLISHED.output, longest // 2)
    tokens = Tokens(min(PUBLISHED.prompt, longest - output), output)
    ratios = [relative_speed(facts, target, recipe, number) for number in (1, requests)]
    speeds = [tokens_per_second(facts, target, recipe, number, tokens) for number in (1, most)]
    alone, together, tokens_alone, tokens_together = (*ratios, *speeds)
    if alone is None or together is None or tokens_alone is None or tokens_together is None:
        return None
    return SpeedFigures(
        alone=alone,
        together=together,
        requests=requests,
        tokens_alone=tokens_alone,
        tokens_together=tokens_together,
        prompt_tokens=tokens.prompt,
        output_tokens=tokens.output,
    )
