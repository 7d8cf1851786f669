"""What quantization and scoring will take of the GPUs that a deployment names for them: memory and time. Pure.

Memory: every figure is in bytes. The weights stay in the baseline's precision until they are exported; calibration runs
without gradients and without the output head (unless the head is quantized), so one layer's activations are alive at
a time. On top come the quantizer's copies of the widest input; under AWQ both outputs that it compares, and a
quantized copy of the largest weight; under AutoQuantize by gradients the checkpointed input of every layer, one
layer's graph, each format's change of each output, the logits with their gradient, and the embedding's gradient.
Allocator fragments and the CUDA context are not in it: `fitting_batch` leaves room for them. FP8 of Llama-3-8B shapes
at 64 x 512 tokens took 20.0 GB on an H200, where this predicts 4 % more; the other methods' terms follow from
modelopt's code.

Time: Llama-3-8B shapes on one H200: 34,000 tokens a second forward, 512 x 512 tokens calibrated in 9.2 s (FP8, NVFP4)
and 11.0 s (SmoothQuant) where a plain pass takes 7.7 s; 64 x 512 under AWQ in 52.6 s, 55 times a plain pass; 16.06 GB
loaded in 1.8 s; 9.08 GB exported in 7.8 s; one step of generation with default settings in some 0.09 s at up to 64
requests. Other models scale with their parameters (steps with their layers), other GPUs with their 16-bit peak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llm_pipeline.base.records import Frozen
from llm_pipeline.catalog.tables import Gpu, find_gpu
from llm_pipeline.config.deployment import QuantizationHost
from llm_pipeline.config.quantization import QuantizationRecipe, Search, WeightFormat
from llm_pipeline.config.release import Evaluation, ResolvedRelease
from llm_pipeline.config.target import Parallelism
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.compatibility import BaselinePrecision, asked_by
from llm_pipeline.planning.memory import HALF_PRECISION, head_parameters, rank_weight_bytes, weight_bytes
from llm_pipeline.planning.task_pool import TaskItems

_SHARE_USED = 0.7
"""What a calibration batch may take of the memory that the weights leave free: the allocator's fragments and the tools'
own buffers take the rest."""

_TOKENS_A_SECOND = 34_000.0
_PARAMETERS = 8.03e9
_LAYERS = 32
_TFLOPS = 989.0
_STEP_SECONDS = 0.09
_LOADED_A_SECOND = 16.06e9 / 1.8
_EXPORTED_A_SECOND = 9.08e9 / 7.8
_PASSES: Mapping[WeightFormat, float] = {
    "fp8": 9.2 / 7.7,
    "nvfp4": 9.2 / 7.7,
    "int8_smoothquant": 11.0 / 7.7,
    "int4_awq": 55.0,
    "w4a8_awq": 55.0,
    "nvfp4_awq": 55.0,
}
"""Time of a calibration, by that of a plain pass over the same tokens; AWQ's others are taken as INT4's."""

_SCORED_SAMPLES = 128
_BACKWARD_PASSES = 3.0
"""A score by gradients: the pass itself, once more for the checkpointed layer, and back; formats come on top."""


def forward_seconds(facts: ModelFacts, gpu: Gpu, tokens: float) -> float:
    """A plain forward pass over so many tokens."""
    flops = (gpu.dense_tflops["bf16"] or 0.0) / _TFLOPS
    return tokens / (_TOKENS_A_SECOND * flops * _PARAMETERS / facts.active_parameters)


def quantization_seconds(facts: ModelFacts, recipe: QuantizationRecipe, gpu: Gpu) -> float | None:
    """Loading, calibrating (at most, with texts of full length) and exporting; None where nothing was measured."""
    if recipe.weights in ("none", "ready"):
        return 0.0 if recipe.weights == "none" else None
    files = weight_bytes(facts, _PLAIN) / _LOADED_A_SECOND + weight_bytes(facts, recipe) / _EXPORTED_A_SECOND
    passes = _passes(recipe)
    if recipe.calibration is None or passes is None:
        return None if recipe.calibration else files
    tokens = recipe.calibration.samples * recipe.calibration.maximum_tokens
    return files + forward_seconds(facts, gpu, tokens * passes)


def scoring_seconds(facts: ModelFacts, task: TaskItems, gpu: Gpu, batch: int) -> float | None:
    """Asking all items of a task once; None where too little is known of it."""
    if task.items is None or task.prompt_tokens is None or task.output_tokens is None:
        return None
    written = task.items / batch * task.output_tokens * _STEP_SECONDS * facts.layers / _LAYERS
    return forward_seconds(facts, gpu, task.items * task.prompt_tokens) + written


def _passes(recipe: QuantizationRecipe) -> float | None:
    """Plain passes over the calibration data that take as long."""
    formats = asked_by(recipe).weights
    calibrated = sum(_PASSES.get(name, 1.0) for name in formats)
    if recipe.search is None or recipe.calibration is None:
        return calibrated
    scored = min(1.0, _SCORED_SAMPLES / recipe.calibration.samples)
    return calibrated + scored * (_BACKWARD_PASSES + len(formats))


CONTEXT_BYTES = 2**30
"""CUDA context and libraries of one process on one device; an estimate."""

_BYTES: dict[BaselinePrecision, int] = {"float16": HALF_PRECISION, "bfloat16": HALF_PRECISION}
_SINGLE_PRECISION = 4
_PLAIN = QuantizationRecipe(name="none", weights="none")


class PeakMemory(Frozen):
    """The fullest device while a recipe is made, in bytes.

    Attributes:
        weights: The unquantized model's share.
        activations: Of one layer, for the whole batch.
        logits: Where the output head runs.
        method: What the algorithm adds.
    """

    weights: int
    activations: int
    logits: int
    method: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.activations + self.logits + self.method


def predict_peak(
    facts: ModelFacts,
    recipe: QuantizationRecipe,
    dtype: BaselinePrecision,
    batch: int,
    tokens: int,
    *,
    devices: int = 1,
) -> PeakMemory:
    """Predict the peak.

    Args:
        facts: The model.
        recipe: How it is quantized.
        dtype: Precision that it is loaded in.
        batch: Sequences a forward pass; 0 for a recipe without calibration.
        tokens: Tokens of the longest sequence.
        devices: GPUs that its layers are spread over.
    """
    rows, element = batch * tokens, _BYTES[dtype]
    weights = rank_weight_bytes(facts, _PLAIN, Parallelism(pipeline=min(devices, facts.layers)), element)
    if recipe.weights in ("none", "ready"):
        return PeakMemory(weights=weights, activations=0, logits=0, method=0)
    return PeakMemory(
        weights=weights,
        activations=rows * _layer_width(facts) * element,
        logits=rows * facts.vocabulary_size * _logit_bytes(facts, recipe, element),
        method=_method_bytes(facts, recipe, rows, element),
    )


def fitting_batch(
    facts: ModelFacts,
    recipe: QuantizationRecipe,
    dtype: BaselinePrecision,
    tokens: int,
    capacity: int,
    *,
    devices: int = 1,
) -> int:
    """Sequences a forward pass that fit into devices of some capacity (in bytes); 0 when not even one does."""
    empty = predict_peak(facts, recipe, dtype, 0, tokens, devices=devices).total
    one = predict_peak(facts, recipe, dtype, 1, tokens, devices=devices).total - empty
    room = int((capacity - CONTEXT_BYTES - empty) * _SHARE_USED)
    return max(0, room // one) if one else int(room >= 0)


def devices_needed(
    facts: ModelFacts, recipe: QuantizationRecipe, dtype: BaselinePrecision, tokens: int, capacity: int
) -> int | None:
    """The fewest devices of some capacity that hold the model and one sequence; None when no number does."""
    counts = range(1, facts.layers + 1)
    return next((n for n in counts if fitting_batch(facts, recipe, dtype, tokens, capacity, devices=n)), None)


def _layer_width(facts: ModelFacts) -> int:
    """Elements alive in one layer for each token: the residual, and attention or (wider) the gated MLP."""
    attention = 2 * facts.head_size * (facts.attention_heads + facts.key_value_heads)
    return 2 * facts.hidden_size + max(attention, 3 * facts.intermediate_size)


def _logit_bytes(facts: ModelFacts, recipe: QuantizationRecipe, element: int) -> int:
    if recipe.search:  # the logits, as float32, their softmax, and what flows back
        return 2 * element + 3 * _SINGLE_PRECISION
    return element if head_parameters(facts, recipe)[0] else 0


def _method_bytes(facts: ModelFacts, recipe: QuantizationRecipe, rows: int, element: int) -> int:
    widest = max(facts.intermediate_size, facts.hidden_size)
    largest_weight = facts.largest_matrix
    copies = largest_weight * (element + _SINGLE_PRECISION)
    magnitudes = rows * widest * element
    if recipe.search:
        return copies + magnitudes + _search_bytes(facts, recipe.search, rows, element)
    formats = asked_by(recipe).weights
    if any("awq" in name for name in formats):
        return 2 * copies + magnitudes + rows * widest * (2 * element + 2 * _SINGLE_PRECISION)
    if "int8_smoothquant" in formats:
        return copies + magnitudes + rows * widest * _SINGLE_PRECISION
    return copies + magnitudes


def _search_bytes(facts: ModelFacts, search: Search, rows: int, element: int) -> int:
    heads = facts.head_size * (facts.attention_heads + 2 * facts.key_value_heads)
    outputs = heads + 2 * facts.hidden_size + 2 * facts.intermediate_size
    changes = len(search.formats) * rows * outputs * element
    inputs_of_layers = facts.layers * rows * facts.hidden_size * element
    graph = 2 * rows * _layer_width(facts) * element
    return changes + inputs_of_layers + graph + facts.embedding_parameters * element


_ASSUMED_BATCH = 32


class RecipeCost(Frozen):
    """Making one recipe.

    Attributes:
        samples: Calibration texts; 0 without calibration.
        tokens: Longest of them.
        batch: Texts a forward pass; 0 without calibration.
        peak: Peak of the fullest GPU.
        largest_batch: Texts a forward pass that fit.
        gpus_needed: The fewest GPUs that hold the model and one text; None when no number does.
        minutes: GPU time; None where nothing was measured that it could follow from.
        warnings: What does not fit.
    """

    recipe: str
    samples: int
    tokens: int
    batch: int
    peak: PeakMemory
    largest_batch: int
    gpus_needed: int | None
    minutes: float | None
    warnings: tuple[str, ...] = ()


class GpuCost(Frozen):
    """What a release takes of the GPUs that quantize and score.

    Attributes:
        accelerator: The GPU.
        count: How many of them one quantization may use.
        capacity: Memory of each, in bytes.
        recipes: Each recipe that is legal somewhere.
        scoring_minutes: GPU time of scoring all items once; None where too little is known of a task.
    """

    accelerator: str
    count: int
    capacity: int
    recipes: tuple[RecipeCost, ...]
    scoring_minutes: float | None


def gpu_cost(
    release: ResolvedRelease,
    recipes: Sequence[QuantizationRecipe],
    host: QuantizationHost,
    facts: ModelFacts,
    tasks: Sequence[TaskItems],
) -> GpuCost:
    """Predict what the given recipes of a release take.

    Args:
        release: The release.
        recipes: Those of its recipes that will be made.
        host: Where.
        facts: The model.
        tasks: What is scored on the checkpoint.

    Raises:
        ConfigError: The host's accelerator is not in the GPU catalog.
    """
    gpu = find_gpu(host.accelerator)
    scoring = _scoring_minutes(release.evaluation, facts, tasks, gpu)
    return GpuCost(
        accelerator=gpu.name,
        count=host.count,
        capacity=gpu.usable_bytes,
        recipes=tuple(_recipe_cost(recipe, facts, release.baseline.dtype, gpu, host.count) for recipe in recipes),
        scoring_minutes=scoring,
    )


def _recipe_cost(
    recipe: QuantizationRecipe, facts: ModelFacts, dtype: BaselinePrecision, gpu: Gpu, count: int
) -> RecipeCost:
    asked = recipe.calibration
    samples, tokens = (asked.samples, asked.maximum_tokens) if asked else (0, 0)
    fits = fitting_batch(facts, recipe, dtype, max(1, tokens), gpu.usable_bytes, devices=count)
    batch = min(asked.batch_size, samples) if asked else 0
    needed = devices_needed(facts, recipe, dtype, max(1, tokens), gpu.usable_bytes)
    seconds = quantization_seconds(facts, recipe, gpu)
    return RecipeCost(
        recipe=recipe.name,
        samples=samples,
        tokens=tokens,
        batch=batch,
        peak=predict_peak(facts, recipe, dtype, batch, tokens, devices=count),
        largest_batch=fits if asked else 0,
        gpus_needed=needed,
        minutes=None if seconds is None else seconds / 60,
        warnings=tuple(_shortage(recipe, gpu, (count, needed), (batch, fits))),
    )


def _shortage(
    recipe: QuantizationRecipe, gpu: Gpu, gpus: tuple[int, int | None], batches: tuple[int, int]
) -> list[str]:
    (count, needed), (batch, fits) = gpus, batches
    if not fits:
        more = f"{needed} hold it" if needed else "no number of them can hold one layer"
        return [f"{recipe.name} does not fit {count} x {gpu.name}: {more}"]
    if batch > fits:
        asked = f"calibration.batch_size of {recipe.name} is {batch}"
        return [f"{asked}, predicted to fit {count} x {gpu.name} is {fits}"]
    return []


def _scoring_minutes(evaluation: Evaluation, facts: ModelFacts, tasks: Sequence[TaskItems], gpu: Gpu) -> float | None:
    batch = _ASSUMED_BATCH if evaluation.batch_size == "auto" else evaluation.batch_size
    seconds = [scoring_seconds(facts, task, gpu, batch) for task in tasks]
    known = [value for value in seconds if value is not None]
    return sum(known) / 60 if len(known) == len(seconds) else None
