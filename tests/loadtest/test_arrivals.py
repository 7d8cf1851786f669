import numpy as np
import pytest

from llm_pipeline.loadtest.workload import arrival_times

BURSTINESS = (1.0, 2.0, 0.5, 0.01)


@pytest.mark.parametrize("burstiness", BURSTINESS)
def test_times_rise_within_the_window_and_are_those_of_the_seed(burstiness):
    times = arrival_times(50.0, 20.0, burstiness, 1)
    assert 0.0 < times[0] <= times[-1] < 20.0
    assert np.all(np.diff(times) >= 0.0)
    np.testing.assert_array_equal(times, arrival_times(50.0, 20.0, burstiness, 1))
    assert not np.array_equal(times[:100], arrival_times(50.0, 20.0, burstiness, 2)[:100])


@pytest.mark.parametrize("burstiness", [*BURSTINESS, 5.0])
def test_the_mean_rate_is_the_asked_one(burstiness):
    counts = [len(arrival_times(30.0, 10.0, burstiness, seed)) for seed in range(200)]
    assert np.mean(counts) == pytest.approx(300, abs=4.0 * np.std(counts) / 200**0.5 + 1.0)


@pytest.mark.parametrize("burstiness", BURSTINESS)
def test_gaps_vary_as_was_asked(burstiness):
    gaps = np.diff(arrival_times(100.0, 1000.0, burstiness, 3))
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(burstiness, rel=0.02)


@pytest.mark.parametrize(("rate", "seconds"), [(0, 1), (1, 0), (-1, 1)])
def test_a_rate_or_a_duration_of_nothing_is_refused(rate, seconds):
    with pytest.raises(ValueError, match="positive"):
        arrival_times(rate, seconds, 1.0, 0)
