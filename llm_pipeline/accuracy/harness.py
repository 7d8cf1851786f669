"""What must be the same on both sides of a comparison, and refusing one where it is not."""

from __future__ import annotations

from collections.abc import Mapping

from llm_pipeline.base.errors import IntegrityError

_SHOWN = 16


def refuse_other_harness(baseline: Mapping[str, str], candidate: Mapping[str, str]) -> None:
    """Refuse to compare evaluations that were made in different ways.

    Args:
        baseline: The harness of the baseline's evaluation: versions, digests and settings by name.
        candidate: The same of the candidate; what it does not name does not matter to it. The served lane, for one,
            has no tokenizer of its own.

    Raises:
        IntegrityError: Something differs; each of it is named, with both values.
    """
    different = [
        f"{name}: {_short(baseline.get(name))} before, {_short(value)} now"
        for name, value in candidate.items()
        if baseline.get(name) != value
    ]
    if different:
        raise IntegrityError(
            f"not comparable with the baseline: {'; '.join(different)}",
            where="harness of baseline and candidate",
            hint="evaluate both with the same harness, tasks and data; the baseline is computed again when they change",
        )


def _short(value: str | None) -> str:
    return "unknown" if value is None else value[:_SHOWN]
