"""What the baseline must score, as the release config states it."""

from __future__ import annotations

from llm_pipeline.config.release import ExpectedScore, ResolvedRelease
from llm_pipeline.planning.cost_table import aligned

_HIGHEST_SHARE = 1.0


def expected_lines(expected: dict[str, ExpectedScore]) -> list[str]:
    """The range of each task, with its source; nothing where none is stated."""
    if not expected:
        return []
    rows = [(task, score_range(own), own.source) for task, own in expected.items()]
    return ["baseline (what it must score before anything is compared with it)", *aligned([*rows], 3)]


def expected_warnings(release: ResolvedRelease) -> tuple[str, ...]:
    """Tasks without a range, and ranges that look like percentages."""
    expected = release.baseline.expected
    found = []
    if missing := [task for task in release.evaluation.tasks if task not in expected]:
        found.append(
            f"baseline.expected states no range for {', '.join(missing)}: there a damaged source is found only if it "
            "is no better than guessing, or much worse than the release in production"
        )
    found += [
        f"baseline.expected: {task} goes up to {own.maximum:g}, and accuracies are shares: 0.8 for 80 %"
        for task, own in expected.items()
        if own.maximum > _HIGHEST_SHARE
    ]
    return tuple(found)


def score_range(expected: ExpectedScore) -> str:
    """A range for people: in percent, unless its metric is no share."""
    if expected.maximum > _HIGHEST_SHARE:
        return f"{expected.minimum:g} to {expected.maximum:g}"
    return f"{100 * expected.minimum:g} % to {100 * expected.maximum:g} %"
