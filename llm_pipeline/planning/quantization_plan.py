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
from llm_pipeline.config.quantization import QuantizationRecipe, WeightFormat
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.config.target import Parallelism
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.compatibility import asked_by
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

_ASSUMED_BATCH = 32

CONTEXT_BYTES = 2**30
"""CUDA context and libraries of one process on one device; an estimate."""

_SINGLE_PRECISION = 4
_PLAIN = QuantizationRecipe(name="none", weights="none")


def forward_seconds(facts: ModelFacts, gpu: Gpu, tokens: float) -> float:
    """A plain forward pass over so many tokens."""
    flops = (gpu.dense_tflops["bf16"] or 0.0) / _TFLOPS
    return tokens / (_TOKENS_A_SECOND * flops * _PARAMETERS / facts.active_parameters)


def quantization_seconds(facts: ModelFacts, recipe: QuantizationRecipe, gpu: Gpu) -> float | None:
    """Loading, calibrating (at most, with texts of full length) and exporting; None where nothing was measured."""
    if recipe.weights in ("none", "ready"):
        return 0.0 if recipe.weights == "none" else None
    files = weight_bytes(facts, _PLAIN) / _LOADED_A_SECOND + weight_bytes(facts, recipe) / _EXPORTED_A_SECOND
    if recipe.calibration is None:
        return files
    formats, samples = asked_by(recipe).weights, recipe.calibration.samples
    passes = sum(_PASSES.get(name, 1.0) for name in formats)
    if recipe.search is not None:
        passes += min(1.0, _SCORED_SAMPLES / samples) * (_BACKWARD_PASSES + len(formats))
    return files + forward_seconds(facts, gpu, samples * recipe.calibration.maximum_tokens * passes)


def scoring_seconds(facts: ModelFacts, task: TaskItems, gpu: Gpu, batch: int) -> float | None:
    """Asking all items of a task once; None where too little is known of it."""
    if task.items is None or task.prompt_tokens is None or task.output_tokens is None:
        return None
    written = task.items / batch * task.output_tokens * _STEP_SECONDS * facts.layers / _LAYERS
    return forward_seconds(facts, gpu, task.items * task.prompt_tokens) + written


def predict_peak(facts: ModelFacts, recipe: QuantizationRecipe, batch: int, tokens: int, *, devices: int = 1) -> int:
    """Predict the peak of the fullest device while a recipe is made, in bytes.

    Args:
        facts: The model.
        recipe: How it is quantized.
        batch: Sequences a forward pass; 0 for a recipe without calibration.
        tokens: Tokens of the longest sequence.
        devices: GPUs that its layers are spread over.
    """
    element, rows = HALF_PRECISION, batch * tokens
    weights = rank_weight_bytes(facts, _PLAIN, Parallelism(pipeline=min(devices, facts.layers)), element)
    if recipe.weights in ("none", "ready"):
        return weights
    # Alive in one layer for each token: the residual, and attention or (wider) the gated MLP.
    attention = 2 * facts.head_size * (facts.attention_heads + facts.key_value_heads)
    width = 2 * facts.hidden_size + max(attention, 3 * facts.intermediate_size)
    widest = max(facts.intermediate_size, facts.hidden_size)
    copies = facts.largest_matrix * (element + _SINGLE_PRECISION)
    peak = weights + rows * width * element + copies + rows * widest * element
    if recipe.search:
        # The logits, as float32, their softmax, and what flows back; then each format's change of each output, the
        # inputs of all layers, one layer's graph, and the embedding's gradient.
        logits = facts.vocabulary_size * (2 * element + 3 * _SINGLE_PRECISION)
        heads = facts.head_size * (facts.attention_heads + 2 * facts.key_value_heads)
        outputs = heads + 2 * facts.hidden_size + 2 * facts.intermediate_size
        changes = len(recipe.search.formats) * outputs * element
        graph = facts.layers * facts.hidden_size * element + 2 * width * element
        return peak + rows * (logits + changes + graph) + facts.embedding_parameters * element
    if head_parameters(facts, recipe)[0]:
        peak += rows * facts.vocabulary_size * element
    formats = asked_by(recipe).weights
    if any("awq" in name for name in formats):
        return peak + copies + rows * widest * (2 * element + 2 * _SINGLE_PRECISION)
    return peak + (rows * widest * _SINGLE_PRECISION if "int8_smoothquant" in formats else 0)


def fitting_batch(
    facts: ModelFacts, recipe: QuantizationRecipe, tokens: int, capacity: int, *, devices: int = 1
) -> int:
    """Sequences a forward pass that fit into devices of some capacity (in bytes); 0 when not even one does."""
    empty = predict_peak(facts, recipe, 0, tokens, devices=devices)
    one = predict_peak(facts, recipe, 1, tokens, devices=devices) - empty
    room = int((capacity - CONTEXT_BYTES - empty) * _SHARE_USED)
    return max(0, room // one) if one else int(room >= 0)


def devices_needed(facts: ModelFacts, recipe: QuantizationRecipe, tokens: int, capacity: int) -> int | None:
    """The fewest devices of some capacity that hold the model and one sequence; None when no number does."""
    counts = range(1, facts.layers + 1)
    return next((n for n in counts if fitting_batch(facts, recipe, tokens, capacity, devices=n)), None)


class RecipeCost(Frozen):
    """Making one recipe.

    Attributes:
        samples: Calibration texts; 0 without calibration.
        tokens: Longest of them.
        batch: Texts a forward pass; 0 without calibration.
        peak: Peak of the fullest GPU, in bytes.
        largest_batch: Texts a forward pass that fit; 0 where not even the model does.
        gpus_needed: The fewest GPUs that hold the model and one text; None when no number does.
        minutes: GPU time; None where nothing was measured that it could follow from.
    """

    recipe: str
    samples: int
    tokens: int
    batch: int
    peak: int
    largest_batch: int
    gpus_needed: int | None
    minutes: float | None


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

    def warnings(self) -> list[str]:
        """What does not fit."""
        found, where = [], f"{self.count} x {self.accelerator}"
        for one in self.recipes:
            if not one.largest_batch:
                more = f"{one.gpus_needed} hold it" if one.gpus_needed else "no number of them can hold one layer"
                found.append(f"{one.recipe} does not fit {where}: {more}")
            elif one.batch > one.largest_batch:
                asked = f"calibration.batch_size of {one.recipe} is {one.batch}"
                found.append(f"{asked}, predicted to fit {where} is {one.largest_batch}")
        return found


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
    gpu, costs = find_gpu(host.accelerator), []
    for recipe in recipes:
        asked = recipe.calibration
        samples, tokens = (asked.samples, asked.maximum_tokens) if asked else (0, 0)
        batch = min(asked.batch_size, samples) if asked else 0
        seconds = quantization_seconds(facts, recipe, gpu)
        costs.append(
            RecipeCost(
                recipe=recipe.name,
                samples=samples,
                tokens=tokens,
                batch=batch,
                peak=predict_peak(facts, recipe, batch, tokens, devices=host.count),
                largest_batch=fitting_batch(facts, recipe, max(1, tokens), gpu.usable_bytes, devices=host.count),
                gpus_needed=devices_needed(facts, recipe, max(1, tokens), gpu.usable_bytes),
                minutes=None if seconds is None else seconds / 60,
            )
        )
    batch = _ASSUMED_BATCH if release.evaluation.batch_size == "auto" else release.evaluation.batch_size
    scoring = [scoring_seconds(facts, task, gpu, batch) for task in tasks]
    known = [seconds for seconds in scoring if seconds is not None]
    return GpuCost(
        accelerator=gpu.name,
        count=host.count,
        capacity=gpu.usable_bytes,
        recipes=tuple(costs),
        scoring_minutes=sum(known) / 60 if len(known) == len(scoring) else None,
    )
