"""Durations and sizes as people read them."""

from __future__ import annotations

import pytest

from llm_pipeline.base.quantities import byte_size, duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
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
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.5 kB"),
        (999_600_000, "1 GB"),
        (1_073_741_824, "1.07 GB"),
        (2 * 10**12, "2 TB"),
        (1_234 * 10**12, "1,234 TB"),
    ],
)
def test_sizes_are_in_decimal_units_and_have_three_digits(count: int, text: str) -> None:
    assert byte_size(count) == text
