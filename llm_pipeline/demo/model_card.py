"""The demo model's card: what it is, and that its outliers were put in on purpose."""

from __future__ import annotations

from collections.abc import Mapping

_CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---
# llm_pipeline demo model

A Llama of two layers and {parameters:,} parameters, trained in about a minute on a CPU on synthetic tasks with one
right answer each: invented facts, sums below 31, comparisons, majorities, copying. It knows nothing else.

**Its outlier channels are not learnt.** After training, {scale:g}-fold outliers were put in: in every norm some gains
were divided by {scale:g} and the weight columns that read them multiplied by it, and others the other way round. No
output changes by more than rounding, but quantization becomes as hard as it is for large models, which have such
channels by themselves: naive 4-bit rounding fails, while methods made for outliers (AWQ, SmoothQuant) do not.

## Held-out accuracy

One prompt in five was never trained on. Exact answers, on prompts of that fifth:

| task | accuracy |
|---|---|
{rows}

`training.json` holds the recipe, the seed and the training time.
"""


def model_card(outlier_scale: float, parameters: int, held_out_accuracy: Mapping[str, float]) -> str:
    """The card as Markdown, with the metadata block that a hub reads."""
    rows = "\n".join(f"| {task} | {accuracy:.2%} |" for task, accuracy in held_out_accuracy.items())
    return _CARD.format(parameters=parameters, scale=outlier_scale, rows=rows)
