"""Group-sequential boundaries: against published ones, and against the error they promise."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llm_pipeline.statistics.spending import (
    IMPROBABLE,
    boundaries,
    early,
    futility_boundaries,
    late,
    nominal_level,
    stopping_chances,
)

FIVE = (0.2, 0.4, 0.6, 0.8, 1.0)
NEVER = [-math.inf] * 5


@pytest.mark.parametrize(
    ("spending", "published"),
    [
        # R's gsDesign and ldbounds, five equal looks at a one-sided 0.025: sfLDOF, sfLDPocock
        (late, (4.8769, 3.3569, 2.6803, 2.2898, 2.0310)),
        (early, (2.4380, 2.4268, 2.4101, 2.3966, 2.3859)),
    ],
)
def test_boundaries_are_the_published_ones(spending, published: tuple[float, ...]) -> None:
    assert boundaries(FIVE, spending, 0.025) == pytest.approx(published, abs=2e-4)


@pytest.mark.parametrize(
    ("constant", "falling", "error"),
    # Jennison and Turnbull (2000), tables 2.1 and 2.3: five looks at a two-sided 0.05, of Pocock and O'Brien-Fleming
    [(2.413, 0.0, 0.025), (2.040, 0.5, 0.025)],
)
def test_classical_boundaries_are_crossed_as_often_as_published(constant: float, falling: float, error: float) -> None:
    upper = [constant / share**falling for share in FIVE]
    assert sum(stopping_chances(FIVE, upper, NEVER, 0.0).above) == pytest.approx(error, abs=5e-5)


def test_one_look_is_the_plain_test() -> None:
    assert nominal_level((1.0,), late, 0.05) == pytest.approx(0.05)
    assert nominal_level((1.0,), early, 0.01) == pytest.approx(0.01)


@example([997, 998, 999], 0.005, late)
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 999), min_size=1, max_size=6, unique=True),
    st.sampled_from([0.2, 0.05, 0.005]),
    st.sampled_from([late, early]),
)
def test_looks_of_any_size_spend_exactly_the_error(sizes: list[int], alpha: float, spending) -> None:
    shares = (*(size / 1000 for size in sorted(sizes)), 1.0)
    upper = boundaries(shares, spending, alpha)
    assert sum(stopping_chances(shares, upper, [-math.inf] * len(shares), 0.0).above) == pytest.approx(alpha, rel=1e-3)


def test_a_look_decides_by_what_was_seen_until_then_only() -> None:
    assert boundaries(FIVE[:3], late, 0.05) == boundaries(FIVE, late, 0.05)[:3]


def test_twenty_looks_still_let_the_first_one_stop_what_is_wholly_broken() -> None:
    shares = tuple(look / 20 for look in range(1, 21))
    assert 5.0 < boundaries(shares, late, 0.05)[0] < 7.0


def test_below_the_futility_boundary_a_pass_is_as_improbable_as_stated() -> None:
    """Followed from the boundary on, with the drift that was seen so far as uncertain as it is."""
    upper, lower = boundaries(FIVE, late, 0.05), futility_boundaries(FIVE, 0.05)
    for share, boundary in zip(FIVE[:-1], lower[:-1], strict=True):
        expected = boundary / math.sqrt(share)
        spread = math.sqrt((1 - share) / share)
        assert 0.5 * math.erfc((upper[-1] - expected) / spread / math.sqrt(2)) == pytest.approx(IMPROBABLE)


def test_futility_costs_a_lossless_model_little_power_and_spares_bad_models_most_items() -> None:
    upper = boundaries(FIVE, late, 0.05)
    drift = 1.645 + 1.282
    free, bound = (stopping_chances(FIVE, upper, lower, drift) for lower in (NEVER, futility_boundaries(FIVE, 0.05)))
    assert sum(free.above) - sum(bound.above) < 0.005
    bad = stopping_chances(FIVE, upper, futility_boundaries(FIVE, 0.05), -drift)
    assert sum(bad.below[:2]) > 0.8
