"""The page of architectures, from what the matrix found: `python tests/corpus/table.py WORK` writes it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from matrix import MIXTURES, MODELS, TABLE, TOLERATED, WITHOUT_EXPERTS, Outcome, read_outcomes

_HEAD = f"""# Architectures that were tried

Tiny models of two layers with random weights, with every recipe of this package that a CPU can make, on the engine
`openvino_cpu`. The table shows that the path works; your model's accuracy gate judges your model. `make test-thorough`
holds this page against new runs.

A recipe that a row does not name works: it was quantized, exported, read back, built, and served by Triton with the
same greedy text as the export that was read back, on 15 prompts. Where inputs are quantized, too, rounding may change
some of the 15 answers; the table says how many (more than {TOLERATED}: DIFFERS). A number leads to what
`llm-pipeline plan` says.
"""


def page(outcomes: Mapping[tuple[str, str], Outcome]) -> str:
    """The page in Markdown."""
    recipes = ["none", *sorted({recipe for _, recipe in outcomes} - {"none", WITHOUT_EXPERTS})]
    tried = {model: [*recipes, WITHOUT_EXPERTS] if model in MIXTURES else recipes for model in MODELS}
    found = [outcomes[pair] for model in MODELS for recipe in tried[model] if (pair := (model, recipe)) in outcomes]
    reasons = list(dict.fromkeys(_reason(outcome) for outcome in found if outcome.refused))
    lines = [_HEAD, f"Recipes: {', '.join(recipes)}; for mixtures of experts also {WITHOUT_EXPERTS}.", ""]
    lines += ["| architecture | answers that differ, of 15 | refused |", "|---|---|---|"]
    for model in MODELS:
        of_model = {recipe: outcomes.get((model, recipe)) for recipe in tried[model]}
        lines.append(f"| {model} | {_differing(of_model)} | {_refused(of_model, reasons)} |")
    lines += ["", "What `plan` says:", "", *(f"{number}. {reason}" for number, reason in enumerate(reasons, 1))]
    return "\n".join(lines) + "\n"


def _reason(outcome: Outcome) -> str:
    return outcome.refused.replace("|", "\\|")


def _differing(of_model: Mapping[str, Outcome | None]) -> str:
    told = []
    for recipe, outcome in of_model.items():
        if outcome is None:
            told.append(f"{recipe}: not run")
        elif outcome.failed:
            told.append(f"{recipe} FAILS: {outcome.failed[:80]}")
        elif outcome.differing:
            told.append(f"{recipe}: {outcome.differing}{' (DIFFERS)' if outcome.differing > TOLERATED else ''}")
    return ", ".join(told)


def _refused(of_model: Mapping[str, Outcome | None], reasons: Sequence[str]) -> str:
    by_reason: dict[str, list[str]] = {}
    for recipe, outcome in of_model.items():
        if outcome is not None and outcome.refused:
            by_reason.setdefault(_reason(outcome), []).append(recipe)
    return "; ".join(
        f"{'all' if len(names) == len(of_model) else ', '.join(names)} [{reasons.index(reason) + 1}]"
        for reason, names in by_reason.items()
    )


if __name__ == "__main__":
    TABLE.write_text(page(read_outcomes(Path(sys.argv[1]))))
