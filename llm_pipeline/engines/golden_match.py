"""Whether a loaded model answers as the checkpoint that the accuracy gate judged."""

from __future__ import annotations

from collections.abc import Sequence

from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.logging import get_logger

log = get_logger(__name__)

LEAST_GOLDEN_MATCH = 0.5
"""Kernels and batch sizes differ between runtimes, and greedy texts part at near ties; a broken load matches none."""


def golden_match(golden: Sequence[GoldenPrompt], completions: Sequence[str]) -> float:
    """Share of the golden prompts that were answered alike, as the probes compare it.

    Raises:
        IntegrityError: It is below the floor.
    """
    pairs = list(zip(golden, completions, strict=True))
    different = [(prompt, text) for prompt, text in pairs if prompt.completion.strip() != text.strip()]
    fraction = 1 - len(different) / len(pairs)
    log.info("compared with the golden prompts", prompts=len(pairs), golden_match_fraction=fraction)
    if fraction < LEAST_GOLDEN_MATCH:
        prompt, text = different[0]
        raise IntegrityError(
            f"the loaded model answers {fraction:.0%} of {len(pairs)} golden prompts as the checkpoint that was judged "
            f"({LEAST_GOLDEN_MATCH:.0%} are needed): to {prompt.prompt!r} it wrote {text!r} "
            f"instead of {prompt.completion!r}",
            hint="the runtime reads the checkpoint in another way: look at its quantization, tokenizer and options",
        )
    return fraction
