"""Group-sequential boundaries: against published ones, and against the error they promise."""

from __future__ import annotations

import numpy as np
import pytest

from llm_pipeline.statistics.spending import boundaries, early, late, nominal_level

FIVE = (0.2, 0.4, 0.6, 0.8, 1.0)


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


def test_one_look_is_the_plain_test() -> None:
    assert nominal_level((1.0,), late, 0.05) == pytest.approx(0.05)
    assert nominal_level((1.0,), early, 0.01) == pytest.approx(0.01)


@pytest.mark.parametrize("spending", [late, early])
@pytest.mark.parametrize("shares", [FIVE, (0.05, 0.9, 1.0), (0.997, 0.998, 0.999, 1.0)])
def test_looks_of_any_size_spend_the_error(shares: tuple[float, ...], spending) -> None:
    random = np.random.default_rng(1)
    steps = random.normal(size=(200_000, len(shares))) * np.sqrt(np.diff((0.0, *shares)))
    walks = steps.cumsum(axis=1) / np.sqrt(shares)
    beyond = (walks > boundaries(shares, spending, 0.05)).any(axis=1).mean()
    assert beyond == pytest.approx(0.05, abs=0.002)


def test_a_look_decides_by_what_was_seen_until_then_only() -> None:
    assert boundaries(FIVE[:3], late, 0.05) == boundaries(FIVE, late, 0.05)[:3]


def test_twenty_looks_still_let_the_first_one_stop_what_is_wholly_broken() -> None:
    shares = tuple(look / 20 for look in range(1, 21))
    assert 5.0 < boundaries(shares, late, 0.05)[0] < 7.0
