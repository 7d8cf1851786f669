import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_pipeline.config.workload import LognormalLengths, RecordedLengths, UniformLengths
from llm_pipeline.loadtest.draws import Draws, assign, cut, draw_lengths, longest

CHAT = LognormalLengths(median=200, p95=1000, minimum=20, maximum=4000)


def test_lognormal_lengths_have_their_median_and_95th_percentile():
    drawn = draw_lengths(CHAT, 100_000, Draws(1, "lengths"))
    assert np.quantile(drawn, [0.5, 0.95]) == pytest.approx([200, 1000], rel=0.03)
    assert (drawn.min(), drawn.max()) == (20, 4000)


@pytest.mark.parametrize("lengths", [(4, 16), UniformLengths(minimum=4, maximum=16)])
def test_a_range_gives_each_of_its_lengths_alike_often_and_no_other(lengths):
    values, counts = np.unique(draw_lengths(lengths, 130_000, Draws(2, "lengths")), return_counts=True)
    assert values.tolist() == list(range(4, 17))
    assert counts == pytest.approx(np.full(13, 10_000), rel=0.05)


def test_recorded_lengths_are_cut_to_their_maximum():
    assert cut(np.array([3, 900, 1000]), RecordedLengths(maximum=900)).tolist() == [3, 900, 900]
    assert [longest((4, 16)), longest(CHAT), longest(RecordedLengths(maximum=900))] == [16, 4000, 900]


@given(st.integers(0, 500), st.lists(st.floats(0.01, 1.0), max_size=4), st.integers(0, 9))
def test_each_value_has_its_share_of_requests_to_one_request(count, parts, seed):
    shares = {number: part / (sum(parts) + 0.5) for number, part in enumerate(parts, start=1)}
    values = assign(shares, count, Draws(seed, "shares"))
    for value, share in shares.items():
        assert abs(int(np.sum(values == value)) - share * count) <= 1.0
    assert len(values) == count


def test_who_gets_a_value_is_drawn():
    assert assign({1: 0.5}, 20, Draws(1, "a")).tolist() != assign({1: 0.5}, 20, Draws(2, "a")).tolist()
