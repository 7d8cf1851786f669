"""Items that a margin needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from llm_pipeline.accuracy.looks import items_needed


@pytest.mark.parametrize(("flips", "items"), [(0.02, 1713), (0.05, 4282), (0.08, 6852)])
def test_ninety_percent_power_needs_the_textbooks_items(flips: float, items: int) -> None:
    assert items_needed(0.01, flips, 0.95) == pytest.approx(items, abs=1)


def test_without_flips_enough_items_are_those_that_exclude_the_margin() -> None:
    assert items_needed(0.01, 0.0, 0.95) == 299


@pytest.mark.parametrize("margin", [0.0, -0.01])
def test_a_margin_of_nothing_is_refused(margin: float) -> None:
    with pytest.raises(ValueError, match="no number of items"):
        items_needed(margin, 0.05, 0.95)


def test_power_is_there_without_scipy() -> None:
    code = "import sys, llm_pipeline.accuracy.looks, llm_pipeline.accuracy.sequential; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
