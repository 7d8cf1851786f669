"""Which split of a model over GPUs is the best one: the fewest that hold it, by tensor parallelism first. Pure.

Tensor parallel ranks talk in every layer, so they stay inside one host, with NVLink between its GPUs; a pipeline goes
beyond, and costs latency. Where there is no NVLink, the advice says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from llm_pipeline.base.records import Frozen
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.target import Parallelism, Target
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.interconnect import pcie_reason
from llm_pipeline.planning.target_memory import judge_memory

_STEPS = (1, 2, 4, 8)


class SplitAdvice(Frozen):
    """A better split than the configured one.

    Attributes:
        gpus: GPUs of one engine.
        why: What it is better in.
    """

    tensor: int
    pipeline: int
    gpus: int
    why: str

    @property
    def change(self) -> str:
        """What to write into the target."""
        split = f"{{ tensor: {self.tensor}, pipeline: {self.pipeline} }}"
        return f"parallelism: {split}, accelerator_count: {self.gpus}"


def advise_split(target: Target, recipe: QuantizationRecipe, facts: ModelFacts) -> SplitAdvice | None:
    """The best split for what the target's limits ask for; None where it is configured, or none fits.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    if target.accelerator == "cpu":
        return None
    best = next((split for split in _splits(facts, target.gpus_per_node) if _fits(target, recipe, facts, split)), None)
    now = target.parallelism
    if best is None or (best.tensor, best.pipeline) == (now.tensor, now.pipeline):
        return None
    over_pcie = pcie_reason(target, best.tensor)
    why = _why(target, best, fits=_fits(target, recipe, facts, now), over_pcie=over_pcie is not None)
    if why is None:
        return None
    if over_pcie:
        why += f"; its ranks would communicate over PCIe in every layer ({over_pcie})"
    return SplitAdvice(tensor=best.tensor, pipeline=best.pipeline, gpus=best.world_size, why=why)


def _why(target: Target, best: Parallelism, *, fits: bool, over_pcie: bool) -> str | None:
    now = target.parallelism
    gpus = f"{best.world_size} GPU{'s' if best.world_size > 1 else ''}"
    if not fits:
        return f"it fits on {gpus}"
    if best.world_size < now.world_size:
        return f"what the limits ask for fits on {gpus} of the {now.world_size}: more only make it faster"
    if now.tensor > target.gpus_per_node:
        return f"tensor parallelism {now.tensor} leaves the NVLink of one node of {target.gpus_per_node}"
    if best.tensor > now.tensor and not over_pcie:
        return "tensor parallel ranks answer sooner than the stages of a pipeline"
    return None


def _splits(facts: ModelFacts, gpus_per_node: int) -> Iterator[Parallelism]:
    """Fewest GPUs first; of as many, the shortest pipeline."""
    splits = [
        Parallelism(tensor=tensor, pipeline=pipeline)
        for tensor in _STEPS
        if tensor <= gpus_per_node
        for pipeline in _STEPS
        if facts.attention_heads % tensor == 0 and pipeline <= facts.layers
    ]
    yield from sorted(splits, key=lambda split: (split.world_size, split.pipeline))


def _fits(target: Target, recipe: QuantizationRecipe, facts: ModelFacts, split: Parallelism) -> bool:
    changes = {"parallelism": split, "accelerator_count": split.world_size}
    fit, _ = judge_memory(target.model_copy(update=changes), recipe, facts)
    return fit is not None and fit.fits
