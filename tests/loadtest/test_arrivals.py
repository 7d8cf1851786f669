import itertools
import statistics

import pytest

from llm_pipeline.loadtest.arrivals import poisson_arrivals


def test_the_same_seed_gives_the_same_times_and_another_seed_others():
    assert poisson_arrivals(20, 10, 7) == poisson_arrivals(20, 10, 7)
    assert poisson_arrivals(20, 10, 7) != poisson_arrivals(20, 10, 8)


def test_times_rise_within_the_window():
    times = poisson_arrivals(50, 20, 1)
    assert list(times) == sorted(times)
    assert 0 < times[0] < times[-1] < 20


def test_counts_and_gaps_are_those_of_a_poisson_process():
    counts = [len(poisson_arrivals(30, 10, seed)) for seed in range(200)]
    assert statistics.mean(counts) == pytest.approx(300, abs=5)
    assert statistics.variance(counts) == pytest.approx(300, rel=0.3)
    times = poisson_arrivals(100, 100, 3)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert statistics.stdev(gaps) == pytest.approx(statistics.mean(gaps), rel=0.05)


@pytest.mark.parametrize(("rate", "seconds"), [(0, 1), (1, 0), (-1, 1)])
def test_a_rate_or_a_duration_of_nothing_is_refused(rate, seconds):
    with pytest.raises(ValueError, match="positive"):
        poisson_arrivals(rate, seconds, 0)
