"""The README's table of models and engines is what `plan` says of them without a warning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from judging import recipe
from published import facts_of

from llm_pipeline.config.loading import load_yaml
from llm_pipeline.config.target import Target
from llm_pipeline.planning.compatibility import Legal, judge_compatibility
from llm_pipeline.planning.memory import quantizes_experts
from llm_pipeline.planning.release_checks import recipe_problems

ROOT = Path(__file__).parents[2]
MODELS = {
    "Llama-3.1, Llama-3.2, Llama-3.3": ("Llama-3.1-8B", "Llama-3.2-3B"),
    "Qwen3": ("Qwen3-8B",),
    "Qwen3 mixtures (30B-A3B, 235B-A22B)": ("Qwen3-30B-A3B", "Qwen3-235B-A22B"),
    "Qwen2.5": ("Qwen2.5-7B",),
    "Mistral-7B": ("Mistral-7B-v0.3",),
    "Mixtral": ("Mixtral-8x7B",),
    "Gemma-3": ("Gemma-3-1B",),
    "Phi-3": ("Phi-3-mini-4k",),
}
TARGETS = ("h200_vllm", "h200", "b200", "cpu")
FORMATS = {
    "FP8": "fp8",
    "INT8": "int8_smoothquant",
    "INT4 AWQ": "int4_awq",
    "W4A8 AWQ": "w4a8_awq",
    "NVFP4": "nvfp4",
}
_ROW = re.compile(r"^\| ([^|]+) \|([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)\|$", re.MULTILINE)


def known(model: str, target: Target) -> str:
    """The formats that modelopt makes of the model, and that the target surely serves."""
    facts = facts_of(model)
    found = []
    for name, weights in FORMATS.items():
        asked = recipe(weights)
        experts = quantizes_experts(facts, asked)
        judged = judge_compatibility(target, asked, "bfloat16", f"organisation/{model}", quantized_experts=experts)
        if isinstance(judged, Legal) and not judged.warnings and not list(recipe_problems(asked, facts)):
            found.append(name)
    return ", ".join(found)


@pytest.mark.parametrize("row", MODELS)
def test_a_row_is_what_plan_says(row: str):
    section = (ROOT / "README.md").read_text().partition("## Models and engines")[2].partition("\n## ")[0]
    rows = {found[1]: [cell.strip() for cell in found.groups()[1:]] for found in _ROW.finditer(section)}
    assert set(rows) - {"models", "---"} == set(MODELS)
    for model in MODELS[row]:
        targets = [load_yaml(ROOT / "configs/targets" / f"{name}.yaml", Target) for name in TARGETS]
        assert [known(model, target) for target in targets] == rows[row]
