"""The page of architectures, from what the matrix found: `python tests/corpus/table.py WORK` writes it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from matrix import MODELS, TABLE, TOLERATED, WITHOUT_EXPERTS, Outcome, read_outcomes

_HEAD = f"""# Architectures that were tried

Made by `tests/corpus/matrix.py` (`make test-thorough` holds this page against it): tiny models of two layers with
random weights, every committed recipe that a CPU can make, and the engine `openvino_cpu`. *works* means: quantized,
exported, validated, read back, built, and served by Triton with the greedy text of the read-back export on 15 prompts,
three of which fill the context. Where inputs are quantized, too, a sum in another order may round to the other side of
a step: at most {TOLERATED} of the 15 may differ, and the table says how many did; where more did, it says DIFFERS. A
number is a refusal by `llm-pipeline plan`, in the words below. Real checkpoints were not run: the table shows the path,
the accuracy gate judges yours.

"""


def page(outcomes: Mapping[tuple[str, str], Outcome]) -> str:
    """The page in Markdown."""
    columns = sorted({recipe for _, recipe in outcomes} - {"none", WITHOUT_EXPERTS})
    columns = ["none", *columns, WITHOUT_EXPERTS]
    reasons = list(dict.fromkeys(_reason(outcome) for outcome in _in_order(outcomes, columns) if outcome.refused))
    lines = [f"| architecture | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for model in MODELS:
        cells = (_cell(outcomes.get((model, column)), reasons, mixture=column == WITHOUT_EXPERTS) for column in columns)
        lines.append(f"| {model} | {' | '.join(cells)} |")
    notes = (f"{number}. {reason}" for number, reason in enumerate(reasons, 1))
    return _HEAD + "\n".join(lines) + "\n\nWhat `plan` says:\n\n" + "\n".join(notes) + "\n"


def _in_order(outcomes: Mapping[tuple[str, str], Outcome], columns: Sequence[str]) -> list[Outcome]:
    pairs = ((model, column) for model in MODELS for column in columns)
    return [outcomes[pair] for pair in pairs if pair in outcomes]


def _reason(outcome: Outcome) -> str:
    return outcome.refused.replace("|", "\\|")


def _cell(outcome: Outcome | None, reasons: Sequence[str], *, mixture: bool) -> str:
    if outcome is None:
        return "" if mixture else "not run"
    if outcome.refused:
        return f"[{reasons.index(_reason(outcome)) + 1}]"
    if outcome.failed:
        return f"FAILS: {outcome.failed[:80]}"
    if outcome.differing > TOLERATED:
        return f"DIFFERS ({outcome.differing})"
    return f"works ({outcome.differing} differ)" if outcome.differing else "works"


if __name__ == "__main__":
    TABLE.write_text(page(read_outcomes(Path(sys.argv[1]))))
