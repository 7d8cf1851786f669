"""How many items a margin needs, before one of them is asked."""

from __future__ import annotations

from llm_pipeline.accuracy.intervals import items_to_decide

TYPICAL_FLIPS = 0.05
"""Share of items that change either way, taken while nothing is measured: 1 to 2 % for FP8, 3 to 8 % for 4 bits."""


def items_needed(margin: float, flips: float, confidence: float, power: float = 0.9) -> int:
    """Items with which a model that lost nothing passes with the given power.

    `(z_confidence + z_power)^2 * flips / margin^2`: at 0.95 and 0.9, a margin of one point and flips of 2, 5 and 8 %,
    about 1,750, 4,300 and 6,900.

    Args:
        margin: Largest acceptable loss, a fraction above 0.
        flips: Share of items that change either way.
        confidence: Confidence of the gate's one-sided bound.
        power: Chance to pass.

    Raises:
        ValueError: The margin is not above 0.
    """
    needed = items_to_decide(flips, margin, confidence, power) if margin > 0.0 else None
    if needed is None:
        raise ValueError(f"no number of items decides a margin of {margin}")
    return needed
