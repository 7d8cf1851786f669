"""What a target's GPUs allow at best, in the few numbers that a load test is held against. Pure."""

from __future__ import annotations

from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.target import Target
from llm_pipeline.config.workload import Workload
from llm_pipeline.loadtest.physics import PhysicalLimits
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.roofline import decode_step_seconds, engine_of, most_tokens_per_second, prompt_seconds
from llm_pipeline.planning.speed import Tokens

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
    engine, instances = engine_of(facts, target, recipe), max(1, len(target.serving.gpu_device_ids))
    shared = workload.shared_prefixes is not None or workload.trace is not None
    together = most_tokens_per_second(engine, target.limits.maximum_sequences, Tokens(prompt=0, output=1))
    return PhysicalLimits(
        accelerator=f"{target.parallelism.world_size} x {target.accelerator}",
        first_token_seconds=prompt_seconds(engine, 1),
        token_seconds=decode_step_seconds(engine, 1, 0) / engine.tokens_per_step,
        prompt_token_seconds=0.0 if shared else prompt_seconds(engine, _LONG_PROMPT) / _LONG_PROMPT,
        tokens_per_second=together * instances,
        instances=instances,
    )
