"""The peak of device memory while a recipe is made: weights, the largest activations, and what the method adds. Pure.

    peak = predict_peak(facts, recipe, "bfloat16", batch=32, tokens=512, devices=1)
    peak.total  # bytes on the fullest device

Every figure is in bytes. The weights stay in the baseline's precision until they are exported; calibration runs
without gradients and without the output head (unless the head is quantized), so one layer's activations are alive at
a time. On top come the quantizer's copies of the widest input; under AWQ both outputs that it compares, and a
quantized copy of the largest weight; under AutoQuantize by gradients the checkpointed input of every layer, one
layer's graph, each format's change of each output, the logits with their gradient, and the embedding's gradient.
Allocator fragments and the CUDA context are not in it: `fitting_batch` leaves room for them.

Measured so far: FP8 of Llama-3-8B shapes at 64 x 512 tokens on an H200, 20.0 GB, where this predicts 4 % more. The
other methods' terms follow from modelopt's code and wait for their measurement.
"""

from __future__ import annotations

from llm_pipeline.base.records import Frozen
from llm_pipeline.catalog.batch_limits import SHARE_USED
from llm_pipeline.config.quantization import QuantizationRecipe, Search
from llm_pipeline.config.target import Parallelism
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.formats import BaselinePrecision, asked_by
from llm_pipeline.planning.memory import rank_weight_bytes
from llm_pipeline.planning.weight_storage import HALF_PRECISION, head_parameters

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
    if recipe.weights == "none":
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
    room = int((capacity - CONTEXT_BYTES - empty) * SHARE_USED)
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
    if recipe.search:  # the logits, as float32, their softmax and, for gradients, what flows back
        back = _SINGLE_PRECISION + element if recipe.search.method == "gradient" else 0
        return element + 2 * _SINGLE_PRECISION + back
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
    if search.method == "kl_div":  # the unquantized model's distribution is kept beside the quantized one's
        return rows * facts.vocabulary_size * _SINGLE_PRECISION
    heads = facts.head_size * (facts.attention_heads + 2 * facts.key_value_heads)
    outputs = heads + 2 * facts.hidden_size + 2 * facts.intermediate_size
    changes = len(search.formats) * rows * outputs * element
    inputs_of_layers = facts.layers * rows * facts.hidden_size * element
    graph = 2 * rows * _layer_width(facts) * element
    return changes + inputs_of_layers + graph + facts.embedding_parameters * element
