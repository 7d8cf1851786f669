"""Items that a margin needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from llm_pipeline.accuracy.looks import LookPlan, expected_items, items_needed


@pytest.mark.parametrize(("flips", "items"), [(0.02, 1713), (0.05, 4282), (0.08, 6852)])
def test_ninety_percent_power_needs_the_textbooks_items(flips: float, items: int) -> None:
    assert items_needed(0.01, flips, 0.95) == pytest.approx(items, abs=1)


def test_without_flips_enough_items_are_those_that_exclude_the_margin() -> None:
    assert items_needed(0.01, 0.0, 0.95) == 299


@pytest.mark.parametrize("margin", [0.0, -0.01])
def test_a_margin_of_nothing_is_refused(margin: float) -> None:
    with pytest.raises(ValueError, match="no number of items"):
        items_needed(margin, 0.05, 0.95)


def test_five_looks_are_expected_to_spare_items() -> None:
    """Simulated: 3,080 for a lossless model, 2,890 at the margin, 1,376 at twice the margin, 858 at four times."""
    plan = LookPlan((856, 1713, 2569, 3426, 4282))
    expected = [expected_items(0.01, 0.05, 0.95, plan, loss) for loss in (0.0, 0.01, 0.02, 0.04)]
    assert expected == pytest.approx([3080, 2890, 1376, 858], rel=0.03)


def test_one_look_asks_everything() -> None:
    assert expected_items(0.01, 0.05, 0.95, LookPlan((4282,))) == 4282


def test_power_is_there_without_scipy() -> None:
    code = "import sys, llm_pipeline.accuracy.looks, llm_pipeline.accuracy.sequential; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
