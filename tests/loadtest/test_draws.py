import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_pipeline.loadtest.draws import Draws, exp, log


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_logarithms_are_those_of_numpy_but_for_the_last_bits(value):
    assert log(np.array([value]))[0] == pytest.approx(np.log(value), rel=1e-14, abs=1e-15)


@given(st.floats(min_value=-700.0, max_value=700.0))
def test_exponentials_are_those_of_numpy_but_for_the_last_bits(value):
    assert exp(np.array([value]))[0] == pytest.approx(np.exp(value), rel=1e-14)


def test_what_is_too_small_for_an_exponential_is_0():
    assert exp(np.array([-1e9]))[0] == 0.0


@pytest.mark.parametrize("shape", [0.01, 0.25, 1.0, 4.0])
def test_gamma_numbers_have_their_shapes_mean_and_variance(shape):
    drawn = Draws(1, "gamma").gamma(shape, 200_000)
    assert np.mean(drawn) == pytest.approx(shape, rel=0.05)
    assert np.var(drawn) == pytest.approx(shape, rel=0.1)


def test_normal_numbers_have_the_normal_quantiles():
    assert np.quantile(Draws(2, "normal").normal(200_000), [0.05, 0.5, 0.95]) == pytest.approx(
        [-1.645, 0.0, 1.645], abs=0.015
    )


def test_another_seed_or_purpose_gives_other_numbers():
    numbers = [Draws(seed, purpose).uniform(3).tolist() for seed, purpose in ((1, "a"), (2, "a"), (1, "b"), (1, "a"))]
    assert numbers[0] == numbers[3]
    assert len({tuple(row) for row in numbers}) == 3


@given(st.integers(0, 2**40), st.integers(1, 50))
def test_integers_are_below_their_bound_and_an_order_has_each_number_once(seed, count):
    draws = Draws(seed, "integers")
    assert set(draws.integers(count, 100).tolist()) <= set(range(count))
    assert sorted(draws.order(count).tolist()) == list(range(count))
