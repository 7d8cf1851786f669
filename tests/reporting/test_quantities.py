"""Numbers as people read them."""

from __future__ import annotations

import pytest

from llm_pipeline.reporting.quantities import measure, points


def test_differences_are_signed_points() -> None:
    assert (points(0.0058), points(-0.01)) == ("+0.58", "-1.00")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "ms", "\N{EN DASH}"),
        (0.0123, "fraction", "1.23 %"),
        (93.14, "ms", "93.1 ms"),
        (1234.5, "ms", "1,234 ms"),
        (2e9, "bytes", "2 GB"),
        (1207.0, "requests", "1,207 requests"),
        (1.15, "", "1.15"),
    ],
)
def test_measures_carry_their_unit(value: float | None, unit: str, text: str) -> None:
    assert measure(value, unit) == text
