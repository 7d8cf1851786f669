"""AutoQuantize: one search, whose scores and calibrated formats are kept, and any number of bits solved from it.

modelopt scores how much the output suffers when a group of layers takes a format. Which format each group gets, so
that the mean bits of a weight meet a target, is solved from the scores alone: no calibration, no scoring again, and in
another process as well as in the first. Every layer then gets the scales that its own format was calibrated with
(modelopt's `get_auto_quantize_config` would calibrate all of them by maximum, which undoes what AWQ found out).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import modelopt.torch.quantization as mtq
from modelopt.torch.quantization.algorithms import (
    AutoQuantizeGradientSearcher,
    AutoQuantizeKLDivSearcher,
    QuantRecipe,
)
from torch import nn

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.progress import Progress
from llm_pipeline.base.records import Frozen
from llm_pipeline.config.quantization import QuantizationRecipe, Search
from llm_pipeline.quantization.calibration import Tokens
from llm_pipeline.quantization.calibration_passes import CalibrationPasses, input_ids
from llm_pipeline.quantization.calibration_state import (
    QuantizerState,
    as_state,
    capture,
    restore,
    without_quantization,
)
from llm_pipeline.quantization.modelopt_configs import disabled_layers, search_formats

log = get_logger(__name__)

UNQUANTIZED = "none"
KV_CACHE = "kv_cache"
"""Name of the quantizers of the KV cache among those of the formats."""
_SEARCHERS = {"gradient": AutoQuantizeGradientSearcher, "kl_div": AutoQuantizeKLDivSearcher}
_UNQUANTIZED_BITS = 16.0


class LayerGroup(Frozen):
    """Layers that take one format together, because engines fuse them.

    Attributes:
        layers: Names of the linear layers.
        formats: What they may take, cheapest first.
        scores: How much the output suffers, by format.
        costs: What the weights cost, by format, in units of unquantized weights.
        uncompressed: The cost unquantized.
    """

    layers: tuple[str, ...]
    formats: tuple[str, ...]
    scores: tuple[float, ...]
    costs: tuple[float, ...]
    uncompressed: float


@dataclass(frozen=True)
class Solution:
    """A format for every layer.

    Attributes:
        formats: By layer; `none` for one that stays unquantized.
        effective_bits: Mean bits of a weight, over the layers of the search.
    """

    formats: Mapping[str, str]
    effective_bits: float

    @property
    def layers_by_format(self) -> dict[str, int]:
        """How many layers take each format."""
        return dict(sorted(Counter(self.formats.values()).items()))


class SearchScores(Frozen):
    """What a search found out."""

    method: str
    groups: tuple[LayerGroup, ...]

    @property
    def smallest_bits(self) -> float:
        """The fewest mean bits that any choice reaches."""
        cheapest = sum(min(group.costs) for group in self.groups)
        return cheapest / self._uncompressed * _UNQUANTIZED_BITS

    @property
    def _uncompressed(self) -> float:
        return sum(group.uncompressed for group in self.groups)

    def solve(self, effective_bits: float) -> Solution:
        """The choice that hurts least within the bits.

        Raises:
            ConfigError: No choice is that small; the message names the smallest.
        """
        if effective_bits < self.smallest_bits - 1e-9:
            raise ConfigError(
                f"effective_bits: {effective_bits:g} cannot be reached: with every layer at its cheapest format the "
                f"mean is {self.smallest_bits:.4g} bits",
                where="search",
                hint=f"ask for {math.ceil(self.smallest_bits * 100) / 100:g} or more, or add a smaller format",
            )
        searcher = _SEARCHERS[self.method]()
        searcher.cost_model = "weight"
        searcher.candidate_stats = {
            str(number): {"formats": group.formats, "scores": list(group.scores), "costs": list(group.costs)}
            for number, group in enumerate(self.groups)
        }
        chosen, _ = searcher.run_search_with_stats(self._uncompressed * effective_bits / _UNQUANTIZED_BITS)
        cost = sum(choice["costs"] for choice in chosen.values())
        formats = {layer: chosen[str(n)]["format"] for n, group in enumerate(self.groups) for layer in group.layers}
        return Solution(formats, cost / self._uncompressed * _UNQUANTIZED_BITS)


def search(
    model: Any, recipe: QuantizationRecipe, passes: CalibrationPasses, seed: int
) -> tuple[SearchScores, dict[str, QuantizerState]]:
    """Calibrate every format and score every layer; the model is of no use afterwards.

    Returns:
        The scores, and the calibrated quantizers by format.
    """
    wanted = recipe.search
    if wanted is None:
        raise ValueError(f"recipe {recipe.name} has no search")
    formats = dict(zip(wanted.formats, search_formats(recipe), strict=True))
    batches = list(passes.batches)
    random.Random(seed).shuffle(batches)  # noqa: S311 - what is scored has to be like the rest, no secret
    steps = _score_steps(batches, wanted)
    progress = Progress("AutoQuantize", _forward_passes(model, wanted, len(batches), steps), "forward passes")

    def forward_step(searched: Any, batch: Sequence[Tokens]) -> Any:
        passes.running = (len(batch), len(batch[0]))
        ids = input_ids(searched, batch)
        output = searched(input_ids=ids, labels=ids if wanted.method == "gradient" else None, use_cache=False)
        progress.advance()
        return output if wanted.method == "gradient" else output.logits

    _, state = mtq.auto_quantize(
        model,
        constraints={"effective_bits": _UNQUANTIZED_BITS},
        quantization_formats=list(formats.values()),
        data_loader=batches,
        forward_step=forward_step,
        loss_func=(lambda output, _batch: output.loss) if wanted.method == "gradient" else None,
        disabled_layers=list(disabled_layers(recipe)),
        num_calib_steps=len(batches),
        num_score_steps=steps,
        method=wanted.method,
    )
    names = {QuantRecipe(config, name=name): name for name, config in formats.items()}
    names[QuantRecipe(None)] = UNQUANTIZED
    groups = tuple(_group(found, names) for found in state["candidate_stats"].values())
    scores = SearchScores(method=wanted.method, groups=groups)
    states = state["quantizer_states"].items()
    return scores, {names[choice]: as_state(held["metadata"], held["state_dict"]) for choice, held in states}


def _score_steps(batches: Sequence[Sequence[Tokens]], wanted: Search) -> int:
    """As many batches as hold the samples that are to be scored."""
    seen = 0
    for number, batch in enumerate(batches, start=1):
        seen += len(batch)
        if seen >= wanted.score_samples:
            return number
    return len(batches)


def _forward_passes(model: Any, wanted: Search, batches: int, steps: int) -> int:
    """About as many as modelopt makes, for the time that is left.

    AWQ passes twice over a quarter of the data. To score by divergence takes a pass for every format of every group of
    layers, of which a decoder layer has four: what makes queries, keys and values, what joins the heads, and two of
    the feed-forward part.
    """
    calibration = sum(2 * max(1, batches // 4) if "awq" in name else batches for name in wanted.formats)
    groups = 4 * int(model.config.num_hidden_layers)
    return calibration + steps * (1 if wanted.method == "gradient" else 1 + groups * len(wanted.formats))


def _group(found: Mapping[str, Any], names: Mapping[QuantRecipe, str]) -> LayerGroup:
    return LayerGroup(
        layers=tuple(found["module_names"]),
        formats=tuple(names[choice] for choice in found["formats"]),
        scores=tuple(map(float, found["scores"])),
        costs=tuple(map(float, found["costs"])),
        uncompressed=float(found["uncompressed_cost"]),
    )


def apply(model: nn.Module, quantizers: Mapping[str, QuantizerState], solution: Solution) -> None:
    """Give every layer of a freshly loaded model the calibrated quantizers of its format, and fold their scales."""
    chosen = without_quantization(model)
    properties, tensors = dict(chosen.properties), dict(chosen.tensors)
    for layer, name in solution.formats.items():
        if name != UNQUANTIZED:
            prefix = f"{layer}."
            properties |= _of(quantizers[name].properties, prefix)
            tensors |= _of(quantizers[name].tensors, prefix)
    if KV_CACHE in quantizers:
        cache = quantizers[KV_CACHE]
        properties |= {name: held for name, held in cache.properties.items() if not held.get("_disabled", True)}
        tensors |= dict(cache.tensors)
    restore(model, QuantizerState(properties, tensors))
    QuantRecipe.fold_pqs_to_weights(model)


def _of(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key.startswith(prefix)}


def calibrate_kv_cache(model: nn.Module, config: Mapping[str, Any], passes: CalibrationPasses) -> QuantizerState:
    """The calibrated quantizers of the KV cache alone; AutoQuantize leaves them out."""
    everything_off = {"quantizer_name": "*", "enable": False}
    mtq.quantize(model, {"quant_cfg": [everything_off, *config["quant_cfg"]], "algorithm": "max"}, passes)
    return capture(model)
