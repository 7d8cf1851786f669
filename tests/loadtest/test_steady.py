import numpy as np
import pytest

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.policy import Soak
from llm_pipeline.loadtest.outcome import ServerUse, WindowSummary
from llm_pipeline.loadtest.session import memory_growth, steady_from


def noise(count: int, mean: float = 10.0) -> np.ndarray:
    return np.random.default_rng(5).normal(mean, 1.0, count)


def test_a_slow_beginning_is_cut_and_the_steady_rest_kept():
    series = np.concatenate([noise(30, mean=60.0), noise(170)])
    assert 30 <= steady_from(series) <= 45


def test_a_steady_series_is_hardly_cut():
    assert steady_from(noise(200)) <= 60


def test_a_series_that_still_falls_is_not_steady():
    assert steady_from(np.linspace(100, 0, 200) ** 2) is None


def test_few_values_say_nothing():
    assert steady_from(noise(99)) is None


def soak(**server) -> WindowSummary:
    return WindowSummary(
        name="soak", phase="soak", seed=1, traffic_digest="", requests=100, failed=0, faults={}, offered_per_second=1.0,
        window_seconds=100.0, answered_per_second=1.0, good_per_second=1.0, good_fraction=1.0,
        input_tokens_per_second=1.0, output_tokens_per_second=1.0, client_lag_p99_milliseconds=1.0, rate_share=1.0,
        first_token=None, time_per_output_token=None, inter_token=None, longest_stall=None, end_to_end=None,
        server=ServerUse(**server),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("slope", "samples", "verdict"),
    [(0.0, 90, Verdict.GO), (-500.0, 90, Verdict.GO), (0.49e6, 90, Verdict.GO), (0.51e6, 90, Verdict.NO_GO),
     (0.0, 5, Verdict.INCONCLUSIVE), (None, 90, Verdict.INCONCLUSIVE)],
)  # fmt: skip
def test_memory_may_grow_by_the_tolerated_share_and_unread_memory_never_passes(slope, samples, verdict):
    window = soak(resident_bytes=10**9, resident_bytes_per_second=slope, samples=samples)
    assert memory_growth(window, Soak(maximum_growth_fraction=0.05)).verdict is verdict
