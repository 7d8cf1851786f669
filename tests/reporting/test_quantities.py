"""Numbers as people read them."""

from __future__ import annotations

import pytest

from llm_pipeline.reporting.quantities import duration, measure, megabytes, points


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (1.24, "1.2 s"),
        (12.4, "12 s"),
        (59.7, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (277200, "3 d 5 h"),
    ],
)
def test_durations_use_at_most_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(12, "12 B"), (210_000, "210 kB"), (5_700_000_000, "5.7 GB"), (141_000_000_000, "141 GB")]
)
def test_sizes_use_decimal_units(size: float, text: str) -> None:
    assert megabytes(size) == text


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
